"""The recipe inside and beside a picture or clip file.

A recipe is a JSON object. PNG carries it as an `iTXt` chunk named `sana_like`, next to a chunk
`parameters` in the wording that other tools of the field display. JPEG and WebP carry it in the
EXIF tags `ImageDescription` (JSON, ASCII) and `UserComment` (the wording). MP4 has both texts under
the same names as PNG, as QuickTime keys (`mdta`); GIF has the JSON as its comment; a folder of
frames has it in `clip.json`. Beside the file stands `<file name>.json`.

Clips also carry `sana_like_clip` (MP4) or the key `clip` of the JSON (others): the facts of
`ClipFacts`, which the formats themselves cannot hold exactly.
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
CLIP_KEY = "sana_like_clip"
FACTS_KEY = "clip"
FOLDER_INDEX = "clip.json"
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


def clip_tags(recipe: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> dict[str, str]:
    """The texts that an MP4 carries, by key."""
    tags = {CLIP_KEY: recipe_json(facts)}
    if recipe is not None:
        tags |= {RECIPE_KEY: recipe_json(recipe), PARAMETERS_KEY: parameters_text(recipe)}
    return tags


def with_facts(recipe: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The object that animated WebP, GIF and folders carry: the recipe and the facts of the clip.

    Raises:
        PictureError: the recipe has a key of that name already.
    """
    if recipe is not None and FACTS_KEY in recipe:
        raise PictureError(
            f"the recipe has a key {FACTS_KEY!r}, which is kept for the clip's facts"
        )
    return {**(recipe or {}), FACTS_KEY: dict(facts)}


def exif_bytes(recipe: Mapping[str, Any]) -> bytes:
    """The EXIF block of a JPEG or WebP."""
    exif = Image.Exif()
    exif[_IMAGE_DESCRIPTION] = recipe_json(recipe, ascii_only=True)
    comment = parameters_text(recipe).encode("utf-16-be")
    exif.get_ifd(_EXIF_IFD)[_USER_COMMENT] = b"UNICODE\0" + comment
    return exif.tobytes()


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The recipe of a picture or clip: from the file itself, else from its sidecar.

    Args:
        path: a PNG, JPEG, WebP, GIF or MP4, a folder of frames, or a sidecar (`.json`).

    Raises:
        PictureError: no such file, no recipe, or one that is not a JSON object.
    """
    path = Path(path)
    if path.is_dir() and (path / FOLDER_INDEX).is_file():
        recipe = _read_sidecar(path / FOLDER_INDEX)
    elif not path.is_file():
        raise PictureError(f"{path} does not exist or is not a file")
    elif path.suffix.lower() == ".json":
        recipe = _read_sidecar(path)
    else:
        text = _embedded(path)
        recipe = {} if text is None else _parse(text, str(path))
    recipe.pop(FACTS_KEY, None)
    if recipe:
        return recipe
    if sidecar_path(path).is_file():
        return _read_sidecar(sidecar_path(path))
    raise PictureError(f"{path} carries no recipe, and there is no {sidecar_path(path).name}")


def parse_object(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object in `text`, or `None` where there is none."""
    try:
        return _parse(text, "")
    except PictureError:
        return None


def animation_object(image: Image.Image) -> dict[str, Any] | None:
    """The JSON object that an opened WebP, GIF or PNG carries, facts of the clip included."""
    text = _picture_text(image)
    return None if text is None else parse_object(text)


def _embedded(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(12)
    if head[4:8] == b"ftyp":
        return _mp4_text(path)
    try:
        with Image.open(path, formats=("PNG", "JPEG", "WEBP", "GIF")) as image:
            return _picture_text(image)
    except MemoryError:
        raise
    except Exception as error:
        raise PictureError(
            f"{path} is not a PNG, JPEG, WebP, GIF or MP4, or is damaged: {error}"
        ) from error


def _picture_text(image: Image.Image) -> str | None:
    text: Any = None
    if image.format == "GIF":
        text = image.info.get("comment", b"").decode("utf-8", "replace")
    elif image.format in ("JPEG", "WEBP"):
        text = image.getexif().get(_IMAGE_DESCRIPTION, "")
    else:
        if RECIPE_KEY not in image.info:
            image.load()  # other tools may have moved the chunk behind the pixels
        return image.info.get(RECIPE_KEY)
    return text if str(text).startswith("{") else None


def _mp4_text(path: Path) -> str | None:
    import av

    try:
        with path.open("rb") as file, av.open(file, format="mp4") as container:
            return container.metadata.get(RECIPE_KEY)
    except (av.FFmpegError, ValueError) as error:
        raise PictureError(f"{path} is not an MP4, or is damaged: {error}") from error


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
