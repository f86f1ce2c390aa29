"""Writing pictures, whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from PIL import Image

from sana_like.weights.files import replacing
from sana_like_pipelines.media.errors import PictureError
from sana_like_pipelines.media.metadata import (
    EXIF_LIMIT,
    exif_bytes,
    png_chunks,
    recipe_json,
    sidecar_path,
)

FORMATS = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG", ".jpeg": "JPEG"}
_MODES = ("RGB", "RGBA", "L")


def write_picture(
    image: Image.Image,
    path: str | Path,
    recipe: Mapping[str, Any] | None = None,
    *,
    sidecar: bool = True,
    quality: int = 95,
) -> Path:
    """Write a picture with its recipe.

    The picture and the sidecar are written under temporary names, flushed to disk, and then put in
    place, the sidecar first. A failure leaves no temporary file and, where there was one, the
    earlier file.

    - PNG: all bits, recipe inside.
    - WebP: all bits (lossless), recipe inside.
    - JPEG: lossy, recipe inside where it fits (65,000 bytes), else in the sidecar alone.

    Args:
        image: mode `RGB`, `RGBA` or `L`; no `RGBA` for JPEG.
        path: suffix `.png`, `.webp`, `.jpg` or `.jpeg`; missing folders are made.
        recipe: JSON values, see `sana_like_pipelines.recipe`; `None` writes none, nor a sidecar.
        sidecar: also write `<file name>.json`. Where none is written, that of an earlier picture
            of this name is removed, since it would speak of another picture.
        quality: of JPEG, 1 to 100.

    Returns:
        `path`.

    Raises:
        PictureError: another suffix or mode, a recipe that JSON cannot hold, or one that fits
            neither the file nor, without `sidecar`, stands beside it.
        OSError: the disk refuses.
    """
    path = Path(path)
    data = _encode(image, path, recipe, sidecar, quality)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        picture = stack.enter_context(replacing(path))  # left last, so put in place last
        if recipe is not None and sidecar:
            beside = stack.enter_context(replacing(sidecar_path(path)))
            beside.write_text(recipe_json(recipe) + "\n", encoding="utf-8")
        picture.write_bytes(data)
    if recipe is None or not sidecar:
        sidecar_path(path).unlink(missing_ok=True)
    return path


def _encode(
    image: Image.Image,
    path: Path,
    recipe: Mapping[str, Any] | None,
    sidecar: bool,
    quality: int,
) -> bytes:
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise PictureError(
            f"{path.name} ends in {path.suffix or 'no suffix'}; pictures are written as "
            f"{', '.join(FORMATS)}"
        )
    if image.mode not in _MODES or (kind == "JPEG" and image.mode == "RGBA"):
        raise PictureError(f"a picture in mode {image.mode} cannot be written to {path.name}")
    if not 1 <= quality <= 100:
        raise PictureError(f"quality is {quality}; it must be from 1 to 100")
    arguments: dict[str, Any] = {"format": kind}
    if kind == "JPEG":
        arguments |= {"quality": quality, "subsampling": "4:4:4"}
    elif kind == "WEBP":
        arguments |= {"lossless": True, "exact": True}
    if recipe is not None:
        arguments |= _metadata(kind, path, recipe, sidecar)
    stream = io.BytesIO()
    clean = Image.new(image.mode, image.size)  # without the metadata that the source carried
    clean.paste(image)
    clean.save(stream, **arguments)
    return stream.getvalue()


def _metadata(kind: str, path: Path, recipe: Mapping[str, Any], sidecar: bool) -> dict[str, Any]:
    if kind == "PNG":
        return {"pnginfo": png_chunks(recipe)}
    exif = exif_bytes(recipe)
    if kind == "WEBP" or len(exif) <= EXIF_LIMIT:
        return {"exif": exif}
    if sidecar:
        return {}
    raise PictureError(
        f"the recipe of {path.name} has {len(exif)} bytes and a JPEG holds {EXIF_LIMIT}; write a "
        "sidecar, or a PNG"
    )
