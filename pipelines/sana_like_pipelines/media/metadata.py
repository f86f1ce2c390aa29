"""The recipe inside and beside a picture file.

A recipe is a JSON object. PNG carries it as an `iTXt` chunk named `sana_like`, next to a chunk
`parameters` in the wording that other tools of the field display. JPEG and WebP carry it in the
EXIF tags `ImageDescription` (JSON, ASCII) and `UserComment` (the wording). Beside the picture
stands `<file name>.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from sana_like_pipelines.media.errors import PictureError

RECIPE_KEY = "sana_like"
PARAMETERS_KEY = "parameters"
EXIF_LIMIT = 65_000  # bytes; a JPEG segment holds 65533 with its header

_EXIF_IFD, _IMAGE_DESCRIPTION, _USER_COMMENT = 0x8769, 0x010E, 0x9286
_SIDECAR_LIMIT = 16 * 2**20

# The usual wording, and where a recipe keeps the value.
_PARAMETERS = {
    "Steps": ("settings", "num_inference_steps"),
    "Sampler": ("scheduler", "_class_name"),
    "CFG scale": ("settings", "guidance_scale"),
    "Seed": ("seed",),
    "Model": ("model",),
}


def sidecar_path(path: str | Path) -> Path:
    """Where the sidecar of a picture stands: `apple.png` has `apple.png.json`."""
    path = Path(path)
    return path.with_name(f"{path.name}.json")


def recipe_json(recipe: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """A recipe as JSON text that UTF-8 can hold, keys in the given order.

    Raises:
        PictureError: a value that JSON has no form for, nan and infinity among them.
    """
    try:
        text = json.dumps(dict(recipe), ensure_ascii=ascii_only, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise PictureError(f"the recipe cannot be written as JSON: {error}") from error
    if any("\ud800" <= char <= "\udfff" for char in text):  # half a character, from a broken input
        return recipe_json(recipe, ascii_only=True)
    return text


def parameters_text(recipe: Mapping[str, Any]) -> str:
    """The recipe in the wording `prompt / Negative prompt: ... / Steps: ..., Seed: ...`.

    Keys that the recipe lacks are left out.
    """
    lines = [str(recipe.get("prompt") or "")]
    if recipe.get("negative_prompt"):
        lines.append(f"Negative prompt: {recipe['negative_prompt']}")
    facts = {label: _look_up(recipe, keys) for label, keys in _PARAMETERS.items()}
    size = [_look_up(recipe, ("settings", side)) for side in ("width", "height")]
    if None not in size:
        facts["Size"] = f"{size[0]}x{size[1]}"
    if recipe.get("software"):
        facts["Version"] = f"{recipe['software']} {recipe.get('version', '')}".strip()
    lines.append(", ".join(f"{key}: {value}" for key, value in facts.items() if value is not None))
    text = "\n".join(line for line in lines if line)
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _look_up(recipe: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    value: Any = recipe
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def png_chunks(recipe: Mapping[str, Any]) -> PngImagePlugin.PngInfo:
    """The two text chunks of a PNG."""
    chunks = PngImagePlugin.PngInfo()
    chunks.add_itxt(RECIPE_KEY, recipe_json(recipe))
    chunks.add_itxt(PARAMETERS_KEY, parameters_text(recipe))
    return chunks


def exif_bytes(recipe: Mapping[str, Any]) -> bytes:
    """The EXIF block of a JPEG or WebP."""
    exif = Image.Exif()
    exif[_IMAGE_DESCRIPTION] = recipe_json(recipe, ascii_only=True)
    comment = parameters_text(recipe).encode("utf-16-be")
    exif.get_ifd(_EXIF_IFD)[_USER_COMMENT] = b"UNICODE\0" + comment
    return exif.tobytes()


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The recipe of a picture: from the file itself, else from its sidecar.

    Args:
        path: a PNG, JPEG or WebP, or a sidecar (`.json`).

    Raises:
        PictureError: no such file, no recipe, or one that is not a JSON object.
    """
    path = Path(path)
    if not path.is_file():
        raise PictureError(f"{path} does not exist or is not a file")
    if path.suffix.lower() == ".json":
        return _read_sidecar(path)
    text = _embedded(path)
    if text is not None:
        return _parse(text, str(path))
    if sidecar_path(path).is_file():
        return _read_sidecar(sidecar_path(path))
    raise PictureError(f"{path} carries no recipe, and there is no {sidecar_path(path).name}")


def _embedded(path: Path) -> str | None:
    try:
        with Image.open(path, formats=("PNG", "JPEG", "WEBP")) as image:
            if image.format != "PNG":
                description = image.getexif().get(_IMAGE_DESCRIPTION, "")
                return description if str(description).startswith("{") else None
            if RECIPE_KEY not in image.info:
                image.load()  # other tools may have moved the chunk behind the pixels
            return image.info.get(RECIPE_KEY)
    except MemoryError:
        raise
    except Exception as error:
        raise PictureError(f"{path} is not a PNG, JPEG or WebP, or is damaged: {error}") from error


def _read_sidecar(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > _SIDECAR_LIMIT:
        raise PictureError(f"{path} has {size} bytes; a recipe has at most {_SIDECAR_LIMIT}")
    return _parse(path.read_bytes(), str(path))


def _parse(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        recipe = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PictureError(f"the recipe of {where} is not valid JSON: {error}") from error
    if not isinstance(recipe, dict):
        raise PictureError(f"the recipe of {where} is a {type(recipe).__name__}, not an object")
    return recipe
