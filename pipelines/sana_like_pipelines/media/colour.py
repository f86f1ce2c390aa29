"""From any Pillow mode to 8-bit sRGB, with alpha kept where there is one."""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageCms

from sana_like_pipelines.media.errors import PictureError, PictureNotice

# Colour space of an ICC profile, as its header names it, to the modes that it describes.
_PROFILE_MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK", "LAB": "LAB"}


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Convert to sRGB: mode `RGB`, or `RGBA` where the picture has transparency.

    Args:
        image: any mode.
        name: for messages.

    Raises:
        PictureError: values whose range is unknown, or a mode that has no colours.
    """
    alpha = _alpha(image)
    if image.mode.startswith(("I", "F")):
        image = _scaled_grey(image, name)
    elif image.mode in ("LA", "La"):
        image = image.convert("LA").getchannel("L")
    elif image.mode not in _PROFILE_MODES.values():
        # 1, P, PA, RGBA, RGBa, RGBX, YCbCr, HSV
        image = image.convert("RGBA" if alpha else "RGB").convert("RGB")
    rgb = _by_profile(image, name)
    if alpha is not None:
        rgb.putalpha(alpha)
    return rgb


def flatten(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Put a picture in `RGB` or `RGBA` on a colour; the result is new and carries no metadata."""
    flat = Image.new("RGB", image.size, background)
    if image.mode == "RGBA":
        flat.paste(image.convert("RGB"), mask=image.getchannel("A"))
    else:
        flat.paste(image)
    return flat


def _alpha(image: Image.Image) -> Image.Image | None:
    """Opacity in mode `L`, or `None`."""
    if not image.has_transparency_data:
        return None
    if image.mode.startswith("I"):  # 16-bit grey with one transparent value
        key = image.info["transparency"]
        return Image.fromarray(np.where(np.asarray(image) == key, 0, 255).astype(np.uint8))
    if image.mode == "La":
        return image.convert("LA").getchannel("A")
    return image.convert("RGBA").getchannel("A")


def _scaled_grey(image: Image.Image, name: str) -> Image.Image:
    """16-bit and float grey in mode `L`."""
    values = np.asarray(image)
    low, high = values.min(), values.max()
    largest = 1.0 if image.mode == "F" else 65535.0
    if not (low >= 0 and high <= largest):  # also nan
        raise PictureError(
            f"{name} has grey values from {low} to {high}; whole numbers must lie in 0..65535 and "
            "floats in 0..1. Save it as an 8-bit or 16-bit picture"
        )
    scaled = np.rint(values.astype(np.float64) * (255 / largest))
    grey = Image.fromarray(scaled.astype(np.uint8))
    if "icc_profile" in image.info:
        grey.info["icc_profile"] = image.info["icc_profile"]
    return grey


def _by_profile(image: Image.Image, name: str) -> Image.Image:
    """`L`, `RGB`, `CMYK` or `LAB` to `RGB`, through the embedded profile where there is one."""
    data: bytes = image.info.get("icc_profile") or b""
    if image.mode != "LAB" and not data:
        return image.convert("RGB")
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    if image.mode == "LAB":
        return _transform(image, ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")), srgb)
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(data))
        space = profile.profile.xcolor_space.strip()
        if _PROFILE_MODES.get(space) != image.mode:
            raise ValueError(f"it describes {space}, the picture is {image.mode}")
        return _transform(image, profile, srgb)
    except (ImageCms.PyCMSError, OSError, ValueError) as error:
        message = f"the colour profile of {name} is not used: {error}"
        warnings.warn(message, PictureNotice, stacklevel=5)
    return image.convert("RGB")


def _transform(
    image: Image.Image, profile: ImageCms.ImageCmsProfile, srgb: ImageCms.ImageCmsProfile
) -> Image.Image:
    converted = ImageCms.profileToProfile(image, profile, srgb, outputMode="RGB")
    assert converted is not None  # only in-place conversion returns nothing
    return converted
