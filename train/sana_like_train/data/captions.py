"""Caption variants with weights, and the deterministic choice among them.

A picture has several true captions. Training on one wording alone makes a model that understands
one wording; choosing a caption anew each epoch, mostly the plain one, costs nothing and teaches
articles, style synonyms and other languages.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OTHER_LANGUAGES = ("es", "fr", "de", "zh", "ja")

# Weights of the forms; they are relative, a form that a label does not have is left out.
PLAIN_WEIGHT = 0.50
ARTICLE_WEIGHT = 0.15
TAG_WEIGHT = 0.05
SYNONYM_WEIGHT = 0.045
NO_STYLE_WEIGHT = 0.04
LANGUAGE_WEIGHT = 0.022
TAGS_USED = 2

STYLE_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "3d": ("{label}, 3d render", "3d emoji of {article_label}"),
    "flat": ("{label}, flat icon", "flat illustration of {article_label}"),
    "noto": ("{label}, noto emoji", "noto emoji of {article_label}"),
    "twemoji": ("{label}, twitter emoji", "twemoji of {article_label}"),
}

# Head nouns that take no "a": substances, games, adjectives, plurals without -s.
_BARE_HEAD = re.compile(
    r"bacon|badminton|bowling|bread|broccoli|butter|camping|candy|collision|construction|cooking|"
    r"corn|dizzy|dna|fire|fog|foggy|food|football|garlic|hockey|hugging|ice|lacrosse|locked|"
    r"lotion|mate|oden|people|pong|popcorn|racing|rice|sake|salt|soap|spaghetti|sushi|unlocked|"
    r"voltage|wood|wrestling|yarn"
)
_PREPOSITION = re.compile(r" (?:with|in|of|on|at|over|behind|from|for|but|and) ")
_PLURAL = re.compile(r"(?<![suio])s$")
_PLAIN_QUOTES = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"'})  # noqa: RUF001


@dataclass(frozen=True, slots=True)
class Caption:
    """One wording of a picture and its relative weight (> 0) in the choice among them."""

    text: str
    weight: float = 1.0


def plain_label(label: str) -> str:
    """Return `label` with typographic quotes replaced by those that keyboards type."""
    return label.translate(_PLAIN_QUOTES).strip()


def with_article(label: str) -> str:
    """Return `label` with "a" or "an" before it, or as it is where English takes none.

    The rule looks at spelling only: plurals, substances, labels that hold a colon or begin with a
    digit, and names (capitalised first word) stay bare.
    """
    lowered = label.lower()
    head = _PREPOSITION.split(lowered)[0].rsplit(" ", 1)[-1]
    named = ":" in label or label[:1].isupper() or label[:1].isdigit()
    already = lowered.startswith(("a ", "an ", "the "))
    if named or already or _BARE_HEAD.fullmatch(head) or _PLURAL.search(head):
        return label
    # Spelled with a vowel, spoken with a consonant, and the other way round.
    consonant = lowered.startswith(("uni", "one", "euro", "ewe", "ufo"))
    vowel = lowered.startswith(("hour", "x-")) or (lowered[:1] in "aeiou" and not consonant)
    return f"{'an' if vowel else 'a'} {label}"


def emoji_prompt(label: str, style: str) -> str:
    """Return the main wording of a captioned emoji, `LABEL, STYLE`: "red apple, 3d"."""
    return f"{plain_label(label)}, {style}"


def emoji_captions(
    metadata: Mapping[str, Any], *, languages: Sequence[str] = ()
) -> tuple[Caption, ...]:
    """Return the caption variants of one picture of an emoji pack.

    `metadata` is the picture's JSON: `style`, `en` with `label` and `tags`, and the same for other
    `languages`, whose labels are used where asked for: the embedded text encoder reads English, and
    captions that it cannot read would take from those that it can. The first caption is the main
    one. Equal texts are merged, their weights added.
    """
    style = str(metadata["style"])
    label = plain_label(metadata["en"]["label"])
    article_label = with_article(label)
    weights: dict[str, float] = {}

    def add(text: str, weight: float) -> None:
        weights[text] = weights.get(text, 0.0) + weight

    add(emoji_prompt(label, style), PLAIN_WEIGHT)
    add(f"{article_label}, {style}", ARTICLE_WEIGHT)
    known = set(label.lower().split())
    # A word of the label again as a tag would teach nothing.
    new_tags = [tag for tag in metadata["en"].get("tags", ()) if tag.lower() not in known]
    for tag in new_tags[:TAGS_USED]:
        add(f"{label}, {plain_label(tag)}, {style}", TAG_WEIGHT)
    for form in STYLE_SYNONYMS.get(style, ()):
        add(form.format(label=label, article_label=article_label), SYNONYM_WEIGHT)
    add(article_label, NO_STYLE_WEIGHT)
    for language in languages:
        if language in metadata:
            add(f"{plain_label(metadata[language]['label'])}, {style}", LANGUAGE_WEIGHT)
    return tuple(Caption(text, weight) for text, weight in weights.items())


def choose_caption(captions: Sequence[Caption], *, seed: int, epoch: int, key: str) -> Caption:
    """Choose one of `captions` with probability proportional to its weight.

    The choice is a function of `(seed, epoch, key)` alone, so it is the same after a resume, on any
    number of workers and in any order. Raises `ValueError` where there is no caption or a weight
    is not positive.
    """
    if not captions:
        raise ValueError(f"record {key!r} has no caption; give it a .txt or .json beside it")
    total = sum(caption.weight for caption in captions)
    if any(caption.weight <= 0 for caption in captions):
        raise ValueError(f"record {key!r}: every caption weight must be above 0")
    digest = hashlib.blake2b(f"{seed}:{epoch}:{key}".encode(), digest_size=8).digest()
    mark = int.from_bytes(digest, "big") / 2**64 * total
    for caption in captions:
        mark -= caption.weight
        if mark < 0:
            return caption
    return captions[-1]  # the sum of the weights rounded below `total`
