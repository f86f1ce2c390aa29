"""The packs that this project builds itself, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sana_like_train.data.emoji import build_emoji_pack, default_pack
from sana_like_train.data.emoji_clips import build_clips_pack, default_clips_pack

_BUILDERS = {
    "emoji": (build_emoji_pack, default_pack),
    "emoji-clips": (build_clips_pack, default_clips_pack),
}
PACKS = tuple(_BUILDERS)


def build_pack(
    name: str,
    output: str | Path | None = None,
    *,
    report: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Build the pack `name` and return its path.

    Args:
        name: one of `PACKS`.
        output: the file to write; None puts it where `find_pack` looks.
        report: called with one line on what is being done.
        progress: called with pictures done and in all.

    Raises:
        ValueError: there is no such pack.
    """
    _check(name)
    path = None if output is None else Path(output)
    return _BUILDERS[name][0](path, report=report, progress=progress)


def find_pack(name: str = "emoji") -> Path:
    """Return where `build_pack` has put the pack `name`; raises `ValueError` if it has not yet."""
    _check(name)
    path = _BUILDERS[name][1]()
    if not path.is_file():
        raise ValueError(
            f"the pack {name!r} is not at {path}; build it with `sana-like train data {name}` or "
            "say where it is"
        )
    return path


def _check(name: str) -> None:
    if name not in PACKS:
        raise ValueError(f"there is no pack {name!r}; choose one of {', '.join(PACKS)}")
