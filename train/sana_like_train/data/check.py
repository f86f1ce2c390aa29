"""Looks a data source over before training spends hours on it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sana_like_train.data.buckets import Size
from sana_like_train.data.records import load_records


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What was found.

    Attributes:
        pictures: records in all.
        unreadable: key and reason of each picture that cannot be decoded.
        without_caption: keys of records without any caption.
        too_small: keys whose shorter side is below the size asked about.
        duplicates: groups of two or more keys with the same pixels.
        repeated_captions: main captions that more than one picture has, with how many have it.
        sizes: (height, width) of the readable pictures and how many have it, most frequent first.
    """

    pictures: int
    unreadable: tuple[tuple[str, str], ...]
    without_caption: tuple[str, ...]
    too_small: tuple[str, ...]
    duplicates: tuple[tuple[str, ...], ...]
    repeated_captions: tuple[tuple[str, int], ...]
    sizes: tuple[tuple[Size, int], ...]

    @property
    def usable(self) -> bool:
        """Whether training can start: every picture decodes and has a caption."""
        return not self.unreadable and not self.without_caption

    def lines(self, examples: int = 3) -> list[str]:
        """Return the report as lines of text, with at most `examples` names for each finding."""
        found = [f"{self.pictures} pictures"]
        for what, names in (
            ("cannot be decoded", [f"{key} ({reason})" for key, reason in self.unreadable]),
            ("have no caption", list(self.without_caption)),
            ("are smaller than asked", list(self.too_small)),
            ("groups have the same pixels", [" = ".join(keys) for keys in self.duplicates]),
            ("captions occur more than once", [f"{c!r} x{n}" for c, n in self.repeated_captions]),
        ):
            if names:
                more = "" if len(names) <= examples else ", ..."
                found.append(f"{len(names)} {what}: {', '.join(names[:examples])}{more}")
        if self.sizes:
            named = [f"{height} x {width} ({count})" for (height, width), count in self.sizes]
            more = "" if len(named) <= examples else ", ..."
            found.append(f"{len(named)} sizes: {', '.join(named[:examples])}{more}")
        return found


def check_source(
    source: str | Path,
    *,
    min_side: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> SourceReport:
    """Decode every picture of `source` and report what would spoil or stop a training run.

    Args:
        source: as `load_records` takes it; it raises `ValueError` where that does.
        min_side: pictures whose shorter side is below this many pixels are reported.
        progress: called with pictures done and in all.
    """
    records = load_records(source)
    unreadable: list[tuple[str, str]] = []
    too_small: list[str] = []
    by_pixels: dict[bytes, list[str]] = {}
    sizes: Counter[Size] = Counter()
    for done, record in enumerate(records, start=1):
        try:
            image = record.open_image()
        except ValueError as error:
            unreadable.append((record.key, str(error.__cause__ or error)))
        else:
            sizes[image.height, image.width] += 1
            if min(image.size) < min_side:
                too_small.append(record.key)
            content = f"{image.mode} {image.size} ".encode() + image.tobytes()
            by_pixels.setdefault(hashlib.blake2b(content).digest(), []).append(record.key)
        if progress is not None:
            progress(done, len(records))
    captions = Counter(record.captions[0].text for record in records if record.captions)
    return SourceReport(
        pictures=len(records),
        unreadable=tuple(unreadable),
        without_caption=tuple(record.key for record in records if not record.captions),
        too_small=tuple(too_small),
        duplicates=tuple(tuple(keys) for keys in by_pixels.values() if len(keys) > 1),
        repeated_captions=tuple((text, n) for text, n in captions.most_common() if n > 1),
        sizes=tuple(sizes.most_common()),
    )
