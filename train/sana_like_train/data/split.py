"""Which part of the emoji pack the product uses, and which pictures training never sees.

Everything is decided by concept (an emoji's code points), never by picture, so that no style of a
held-out concept leaks into training.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from sana_like_train.data.records import Record

HELD_OUT_STRIDE = 20
COMPOSITION_FRACTION = 0.10
STYLES = ("3d", "flat")

Part = Literal["train", "composition", "held_out"]

_CLOCK_FACE = re.compile(r"(o['’]clock|-thirty)$")  # noqa: RUF001
_GENDER_SIGN = re.compile(r"-200d-264[02]")
_FACING_RIGHT = re.compile(r"-200d-27a1")
_HAIR = re.compile(r"-200d-1f9b[0-3]")
_MAN_OR_WOMAN = re.compile(r"^1f46[89]-200d-")
_PERSON = "1f9d1-200d-"
_DROPPED_SUBGROUPS = frozenset({"family"})


@dataclass(frozen=True, slots=True)
class Concept:
    """One emoji: `code` (code points in hex, joined by "-"), its English `label` and its place."""

    code: str
    label: str
    group: str
    subgroup: str
    styles: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """The committed split of the emoji pack.

    Attributes:
        styles: the product's styles.
        concepts: codes of all concepts of the pack.
        selected: codes of the product's concepts.
        held_out: codes that training never sees in any style (of the whole pack).
        composition: code -> the one style of it that training never sees (of the whole pack).
        seed: of the choice in `composition`.
    """

    styles: tuple[str, ...]
    concepts: frozenset[str]
    selected: frozenset[str]
    held_out: frozenset[str]
    composition: Mapping[str, str]
    seed: int

    def part(self, record: Record) -> Part:
        """Say which part `record` belongs to, whether or not it is one of the product's."""
        if record.concept in self.held_out:
            return "held_out"
        if self.composition.get(record.concept) == record.style:
            return "composition"
        return "train"

    def is_selected(self, record: Record) -> bool:
        """Say whether `record` is one of the product's concepts in one of its styles."""
        return record.concept in self.selected and record.style in self.styles

    def records(
        self, records: Iterable[Record], part: Part, *, selected: bool = True
    ) -> list[Record]:
        """Return those of `records` in `part`, only the product's unless `selected` is False."""
        return [
            record
            for record in records
            if self.part(record) == part and (not selected or self.is_selected(record))
        ]

    def to_json(self) -> str:
        """Return the split as the text of its file."""
        content = {
            "styles": list(self.styles),
            "seed": self.seed,
            "held_out": " ".join(sorted(self.held_out)),
            "composition": {
                style: " ".join(
                    sorted(code for code, held in self.composition.items() if held == style)
                )
                for style in self.styles
            },
            "left_out": " ".join(sorted(self.concepts - self.selected)),
            "concepts": " ".join(sorted(self.concepts)),
        }
        return json.dumps(content, indent=1) + "\n"


def concepts_of(records: Iterable[Record]) -> list[Concept]:
    """Return the concepts of an emoji pack, sorted by code."""
    styles: dict[str, list[str]] = {}
    first: dict[str, Record] = {}
    for record in records:
        first.setdefault(record.concept, record)
        styles.setdefault(record.concept, []).append(record.style)
    return [
        Concept(
            code, first[code].label, first[code].group, first[code].subgroup, tuple(styles[code])
        )
        for code in sorted(first)
    ]


def is_nameable(concept: Concept, codes: frozenset[str] | set[str]) -> bool:
    """Say whether the product shows this concept.

    Left out are signs and near-identical pictures, which a small model would mix up and nobody
    asks for by name: symbols, clock faces, families and couples, figures that only face the other
    way, hair variants, and a man or woman whose neutral person is in the pack (`codes`).
    """
    code = concept.code
    if concept.group == "symbols" or concept.subgroup in _DROPPED_SUBGROUPS:
        return False
    if _CLOCK_FACE.search(concept.label) or concept.label.startswith("family"):
        return False
    if _GENDER_SIGN.search(code) or _FACING_RIGHT.search(code) or _HAIR.search(code):
        return False
    return not (_MAN_OR_WOMAN.match(code) and _MAN_OR_WOMAN.sub(_PERSON, code) in codes)


def make_split(records: Sequence[Record], *, seed: int, styles: Sequence[str] = STYLES) -> Split:
    """Make the split of an emoji pack from its rules.

    Held out: concepts sorted by code, every 20th from the first, in all styles. Composition: of
    the others that have two or more of `styles`, as many as make up a tenth of all concepts, each
    in one style; both choices by a hash of `(seed, code)`, so they do not depend on a random
    number generator's version.
    """
    concepts = concepts_of(records)
    codes = {concept.code for concept in concepts}
    held_out = frozenset(concept.code for concept in concepts[::HELD_OUT_STRIDE])
    several = [
        concept
        for concept in concepts
        if concept.code not in held_out and sum(style in styles for style in concept.styles) >= 2
    ]
    several.sort(key=lambda concept: _hash(seed, "concept", concept.code))
    composition = {}
    for concept in several[: round(COMPOSITION_FRACTION * len(concepts))]:
        own = [style for style in styles if style in concept.styles]
        composition[concept.code] = own[_hash(seed, "style", concept.code) % len(own)]
    selected = frozenset(concept.code for concept in concepts if is_nameable(concept, codes))
    return Split(tuple(styles), frozenset(codes), selected, held_out, composition, seed)


def load_split(source: str | Path = "emoji") -> Split:
    """Load a split: a committed one by name, or a file by path.

    Raises `ValueError` where there is none or it lacks a part.
    """
    text = read_split_file(source)
    try:
        content = json.loads(text)
        concepts = frozenset(content["concepts"].split())
        return Split(
            styles=tuple(content["styles"]),
            concepts=concepts,
            selected=concepts - frozenset(content["left_out"].split()),
            held_out=frozenset(content["held_out"].split()),
            composition={
                code: style
                for style, codes in content["composition"].items()
                for code in codes.split()
            },
            seed=int(content["seed"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{source} is not a split file: {error!r}") from error


def read_split_file(source: str | Path) -> str:
    """Return the text of `splits/SOURCE.json` of this package, or of the file at `source`."""
    if Path(source).suffix == ".json":
        if not Path(source).is_file():
            raise ValueError(f"the split file {source} does not exist")
        return Path(source).read_text("utf-8")
    file = resources.files("sana_like_train") / "splits" / f"{source}.json"
    if not file.is_file():
        raise ValueError(f"there is no split {str(source)!r}; give 'emoji' or the path of a .json")
    return file.read_text("utf-8")


def _hash(seed: int, purpose: str, text: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{purpose}:{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
