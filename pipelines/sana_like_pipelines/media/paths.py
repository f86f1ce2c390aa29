"""File names that stay where they belong and that every system can hold."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PureWindowsPath

from sana_like_pipelines.media.errors import PictureError

MAX_NAME_BYTES = 200  # of 255, so that a temporary name or a sidecar's suffix still fits

_UNPORTABLE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\ud800-\udfff]')
_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])", re.IGNORECASE)


def safe_output(base: str | Path, name: str) -> Path:
    """The path of `name` inside the folder `base`, fit for Linux, macOS and Windows.

    Names that point elsewhere are refused. Names that merely cannot be held everywhere are
    changed: forbidden characters become `_`, trailing dots and spaces go, Windows' device names
    get a `_`, long names are cut before their suffix. A changed part ends in a short hash of the
    original, so that different names stay different.

    Args:
        base: an existing or future folder.
        name: a file name, with folders separated by `/` or `\\`.

    Returns:
        `base` joined with the parts of the name. Nothing is created.

    Raises:
        PictureError: the name is empty, absolute, has a drive letter, a NUL or a `..`, or leads
            out of `base` through a link.
    """
    base = Path(base)
    parts = _parts(name)
    target = base.joinpath(*(_portable(part) for part in parts))
    try:
        inside = target.resolve().is_relative_to(base.resolve())
    except (OSError, RuntimeError) as error:  # a loop of links
        raise PictureError(f"{name!r} cannot be resolved in {base}: {error}") from error
    if not inside:
        raise PictureError(f"{name!r} leads out of {base} through a link")
    return target


def _parts(name: str) -> list[str]:
    if "\0" in name:
        raise PictureError(f"{name!r} contains a NUL character")
    windows = PureWindowsPath(name)
    if name.startswith(("/", "\\")) or windows.drive or re.match(r"[A-Za-z]:", name):
        raise PictureError(f"{name!r} is absolute; give a name relative to the output folder")
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", ".")]
    if ".." in parts:
        raise PictureError(f"{name!r} contains '..'; outputs stay in their folder")
    if not parts or name.endswith(("/", "\\")):
        raise PictureError(f"{name!r} is not the name of a file")
    return parts


def _portable(part: str) -> str:
    changed = _UNPORTABLE.sub("_", part).rstrip(" .")
    if _RESERVED.fullmatch(changed.split(".")[0].rstrip(" ")):
        changed = f"_{changed}"
    if changed == part and len(part.encode("utf-8")) <= MAX_NAME_BYTES:
        return part
    mark = "-" + hashlib.sha256(part.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    stem, dot, suffix = changed.rpartition(".")
    if not stem or not re.fullmatch(r"[A-Za-z0-9]{1,8}", suffix):
        stem, dot, suffix = changed, "", ""
    room = MAX_NAME_BYTES - len(mark) - len(dot) - len(suffix)
    return _cut(stem, room) + mark + dot + suffix


def _cut(text: str, size: int) -> str:
    """The start of `text` that takes at most `size` bytes, ending with a whole character."""
    return text.encode("utf-8")[:size].decode("utf-8", "ignore")
