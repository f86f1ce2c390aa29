"""Captioned pictures with random access: WebDataset tars and plain folders.

A tar is read through an index of byte offsets, so that a record opens without scanning and can be
pickled to data-loader workers (no open file is held).

WebDataset's naming: the key of a member is its path up to the first dot of its file name, members
that share a key form one record.
"""

from __future__ import annotations

import json
import math
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sana_like_pipelines.media.errors import PictureError
from sana_like_pipelines.media.read import picture_size, read_layer
from sana_like_train.data.captions import Caption, emoji_captions

PICTURE_SUFFIXES = ("png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff")
CLIP_SUFFIXES = ("mp4", "mov", "m4v", "webm", "mkv", "avi", "webp", "gif")
WHITE = (1.0, 1.0, 1.0)

Colour = tuple[float, float, float]
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes `[offset, offset + size)` of the file at `path`; `size` None means to the end."""

    path: str
    offset: int = 0
    size: int | None = None

    def read(self) -> bytes:
        """Read the bytes; raises `OSError` where the file is gone, `ValueError` where it shrank."""
        with Path(self.path).open("rb") as file:
            file.seek(self.offset)
            content = file.read() if self.size is None else file.read(self.size)
        if self.size is not None and len(content) != self.size:
            raise ValueError(
                f"{self.path} ends before byte {self.offset + self.size}; it is cut off or changed "
                "since it was indexed; load the records again"
            )
        return content


@dataclass(frozen=True, slots=True)
class Record:
    """One captioned picture, or clip (see `clips`).

    Attributes:
        key: name that is unique in its source.
        picture: where the encoded picture or clip lies.
        captions: wordings with weights, the main one first; empty where none was given.
        concept, style, group, subgroup: what an emoji pack says of the picture, else "".
    """

    key: str
    picture: FileSpan
    captions: tuple[Caption, ...]
    concept: str = ""
    style: str = ""
    group: str = ""
    subgroup: str = ""
    label: str = ""

    def open_image(self) -> Image.Image:
        """Decode the picture, upright (EXIF) and in sRGB, as mode RGB or RGBA.

        Raises `ValueError` naming the record where the bytes are not a readable picture.
        """
        return self._read(read_layer)

    def picture_size(self) -> tuple[int, int]:
        """Return (height, width) in pixels, as `open_picture` gives them, from the header alone.

        Raises `ValueError` as `open_image` does.
        """
        width, height = self._read(picture_size)
        return height, width

    def _read(self, reader: Callable[[bytes], Read]) -> Read:
        try:
            return reader(self.picture.read())
        except (OSError, PictureError) as error:
            raise ValueError(
                f"record {self.key!r} in {self.picture.path} is not a readable picture: {error}"
            ) from error

    def open_picture(self, background: Colour | None = None) -> Tensor:
        """Decode the picture and lay it on `background` where it is transparent.

        Args:
            background: red, green, blue in [0, 1]; None is white.

        Returns:
            `[3, Y, X]` fp32 in [-1, 1].
        """
        return composite(self.open_image(), background)


def composite(image: Image.Image, background: Colour | None = None) -> Tensor:
    """Return `image` (RGB or RGBA) on `background` as `[3, Y, X]` fp32 in [-1, 1].

    `background` is red, green, blue in [0, 1], None is white. Alpha is straight, as PNG and WebP
    store it: colour * alpha + background * (1 - alpha).
    """
    colour = WHITE if background is None else background
    if len(colour) != 3 or not all(0.0 <= channel <= 1.0 for channel in colour):
        raise ValueError(f"background must be three numbers in [0, 1], not {background!r}")
    pixels = torch.from_numpy(np.array(image)).movedim(2, 0).float().div_(255.0)  # [3 or 4, Y, X]
    if pixels.shape[0] == 4:
        rgb, alpha = pixels[:3], pixels[3:]
        behind = torch.tensor(colour, dtype=torch.float32).view(3, 1, 1)
        pixels = torch.lerp(behind, rgb, alpha)
    return pixels.contiguous().mul_(2.0).sub_(1.0)


def load_records(source: str | Path, suffixes: Sequence[str] = PICTURE_SUFFIXES) -> list[Record]:
    """Index a WebDataset tar, a folder of such tars, or a folder of pictures with captions.

    Folder of pictures: `NAME.png` (or another of `suffixes`, in any depth) with its caption in
    `NAME.txt` (the whole text) or `NAME.json` (`caption`, or `captions`: texts or
    `{"text", "weight"}`). A picture without caption is kept with empty `captions`.

    Args:
        source: tar or folder.
        suffixes: of the files to take; `CLIP_SUFFIXES` for clips.

    Raises `ValueError` where the source is missing, compressed, damaged or holds no such file.
    """
    path = Path(source)
    if path.is_dir():
        shards = sorted(path.glob("*.tar"))
        records = [record for shard in shards for record in _load_tar(shard, suffixes)]
        records += _load_folder(path, suffixes)
    elif path.is_file():
        records = _load_tar(path, suffixes)
    else:
        raise ValueError(f"{path} does not exist; give a folder of files with captions or a .tar")
    if not records:
        raise ValueError(
            f"{path} holds no picture or clip; expected files ending in {', '.join(suffixes)}"
        )
    seen: set[str] = set()
    for record in records:
        if record.key in seen:
            raise ValueError(f"{path}: the key {record.key!r} occurs twice; rename one")
        seen.add(record.key)
    return records


@dataclass(slots=True)
class _Parts:
    """Members of one record while a source is being read."""

    picture: FileSpan | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    text: str | None = None


def _load_tar(path: Path, suffixes: Sequence[str]) -> list[Record]:
    groups: dict[str, _Parts] = {}
    try:
        with tarfile.open(path, "r:") as tar, path.open("rb") as raw:
            for member in tar:
                if not member.isfile() or member.issparse():
                    continue
                folder, _, name = member.name.rpartition("/")
                stem, _, suffix = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                span = FileSpan(str(path), member.offset_data, member.size)
                suffix = suffix.lower()
                if suffix in suffixes:
                    groups.setdefault(key, _Parts()).picture = span
                elif suffix in ("json", "txt"):
                    raw.seek(span.offset)
                    _add_text(groups.setdefault(key, _Parts()), suffix, raw.read(member.size), key)
    except tarfile.TarError as error:
        raise ValueError(
            f"{path} is not a plain tar ({error}); compressed or cut-off archives have no random "
            "access: unpack it or write it again"
        ) from error
    return [_to_record(key, parts) for key, parts in groups.items() if parts.picture is not None]


def _load_folder(path: Path, suffixes: Sequence[str]) -> list[Record]:
    records = []
    for file in sorted(path.rglob("*")):
        if file.suffix[1:].lower() not in suffixes or not file.is_file():
            continue
        if any(part.startswith(".") for part in file.relative_to(path).parts):
            continue
        key = file.relative_to(path).with_suffix("").as_posix()
        parts = _Parts(picture=FileSpan(os.fspath(file)))
        for suffix in ("txt", "json"):
            beside = file.with_suffix(f".{suffix}")
            if beside.is_file():
                _add_text(parts, suffix, beside.read_bytes(), key)
        records.append(_to_record(key, parts))
    return records


def _add_text(parts: _Parts, suffix: str, content: bytes, key: str) -> None:
    try:
        text = content.decode("utf-8-sig")
        if suffix == "txt":
            parts.text = text.strip()
            return
        metadata = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the .{suffix} of {key!r} is not readable as UTF-8: {error}") from error
    if not isinstance(metadata, dict):
        raise ValueError(f"the .json of {key!r} must hold an object with 'caption' or 'captions'")
    parts.metadata = metadata


def _to_record(key: str, parts: _Parts) -> Record:
    metadata = parts.metadata
    assert parts.picture is not None
    english = metadata.get("en")
    return Record(
        key=key,
        picture=parts.picture,
        captions=_captions(key, metadata, parts.text),
        concept=str(metadata.get("code", "")),
        style=str(metadata.get("style", "")),
        group=str(metadata.get("group", "")),
        subgroup=str(metadata.get("subgroup", "")),
        label=str(english.get("label", "")) if isinstance(english, Mapping) else "",
    )


def _captions(key: str, metadata: Mapping[str, Any], text: str | None) -> tuple[Caption, ...]:
    if text:
        return (Caption(text),)
    if "captions" in metadata:
        if not isinstance(metadata["captions"], list):
            raise ValueError(
                f"the captions of {key!r} must be a list, not {metadata['captions']!r}"
            )
        return tuple(_caption(key, entry) for entry in metadata["captions"])
    if isinstance(metadata.get("caption"), str):
        return (Caption(metadata["caption"]),)
    english = metadata.get("en")
    if isinstance(english, Mapping) and isinstance(english.get("label"), str):
        return emoji_captions(metadata) if "style" in metadata else ()
    return ()


def _caption(key: str, entry: Any) -> Caption:
    if isinstance(entry, str):
        return Caption(entry)
    if isinstance(entry, Mapping) and isinstance(entry.get("text"), str):
        weight = entry.get("weight", 1.0)
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if number and 0 < weight < math.inf:
            return Caption(entry["text"], float(weight))
    raise ValueError(
        f"the captions of {key!r} must be texts, or objects with a 'text' and a 'weight' above 0, "
        f"not {entry!r}"
    )
