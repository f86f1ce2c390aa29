"""Where results go: names made from prompts, and a check of names that people give."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from pathlib import Path

SLUG_LENGTH = 48
SUFFIX = ".png"


def slug(prompt: str) -> str:
    """A short file name stem from `prompt`: lower-case letters and digits joined by hyphens.

    Letters of other scripts stay; what is neither letter nor digit goes. Never empty.
    """
    plain = unicodedata.normalize("NFKC", prompt).lower()
    words = re.findall(r"[^\W_]+", plain)
    name = ""
    for word in words:
        longer = f"{name}-{word}" if name else word[:SLUG_LENGTH]
        if len(longer) > SLUG_LENGTH:
            break
        name = longer
    return name or "picture"


def plan_outputs(
    output: Path | None,
    prompts: list[str],
    seeds: list[int],
    *,
    suffix: str = SUFFIX,
    formats: Collection[str] | None = None,
) -> list[Path]:
    """One path per picture.

    Args:
        output: a picture file, or a folder (made when missing), or `None` for `outputs`. With
            several pictures, a file `a.png` stands for `a-1.png`, `a-2.png` and so on.
        prompts, seeds: one of each per picture, in order.
        suffix: of the names that are made here.
        formats: suffixes that a named file may have; `None` means those of pictures.

    Returns:
        Paths in the order of the pictures. A named file may exist already and is then replaced;
        a name made here never meets an existing file.

    Raises:
        ValueError: `output` has another suffix, or its folder is a file.
    """
    output = Path("outputs") if output is None else output
    if output.suffix and not output.is_dir():
        _check_file(output, formats)
        if len(seeds) == 1:
            return [output]
        return [output.with_stem(f"{output.stem}-{i}") for i in range(1, len(seeds) + 1)]
    _check_folder(output)
    taken: set[Path] = set()
    paths = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        path = _free(output / f"{slug(prompt)}-{seed}{suffix}", taken)
        taken.add(path)
        paths.append(path)
    return paths


def _check_file(path: Path, formats: Collection[str] | None) -> None:
    from sana_like_pipelines.media.write import FORMATS

    legal = FORMATS if formats is None else formats
    if path.suffix.lower() not in legal:
        advice = ", of which .png and .webp keep every bit" if formats is None else ""
        raise ValueError(
            f"output {str(path)!r} ends in {path.suffix!r}; it is written as "
            f"{', '.join(legal)}{advice}"
        )
    _check_folder(path.parent)


def _check_folder(path: Path) -> None:
    for part in (path, *path.parents):
        if part.exists():
            if not part.is_dir():
                raise ValueError(f"{str(part)!r} is a file, so nothing can be written below it")
            return


def _free(path: Path, taken: set[Path]) -> Path:
    candidate, number = path, 2
    while candidate in taken or candidate.exists():
        candidate = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return candidate
