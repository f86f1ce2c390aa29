"""Pictures as users have them, brought to upright 8-bit sRGB."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageOps

from sana_like_pipelines.media.colour import flatten, to_rgb
from sana_like_pipelines.media.errors import PictureError, PictureNotice

Source = str | Path | bytes | Image.Image

DEFAULT_MAX_PIXELS = 89_478_485  # Pillow's own limit, a quarter of a gigabyte of RGB
WHITE = (255, 255, 255)
_ORIENTATION = 0x0112  # the tag of EXIF

# Formats whose decoders are in Pillow itself; EPS, for one, would start Ghostscript.
FORMATS = (
    *("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM"),
    "ICO",
)


def read_picture(
    source: Source,
    *,
    background: tuple[int, int, int] = WHITE,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> Image.Image:
    """Read a picture as upright 8-bit sRGB.

    - EXIF orientation is applied, once; the result carries no metadata.
    - Transparency, of any kind, is flattened on `background`.
    - 16-bit values are scaled, not clipped; float pictures must lie in [0, 1].
    - An embedded colour profile, CMYK's among them, is converted to sRGB; CMYK without one is
      converted by `(1 - c)(1 - k)`.
    - Of animations and multi-page files the first frame is taken, with a `PictureNotice`.

    Args:
        source: a path, the content of a file, or a Pillow picture (which is left as it is).
        background: colour in 0..255 behind transparent parts.
        max_pixels: largest width times height.

    Returns:
        A new picture in mode `RGB`.

    Raises:
        PictureError: no such file, not a picture, cut short, empty, or too large. The message
            names the source.
    """
    check_background(background)
    return flatten(read_layer(source, max_pixels=max_pixels), background)


def read_layer(source: Source, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Image.Image:
    """Read a picture as `read_picture` does, with its transparency kept.

    Returns:
        Mode `RGBA` where there is transparency, else `RGB`; upright.

    Raises:
        PictureError: as `read_picture`.
    """
    image, name = _open_upright(source, max_pixels)
    return to_rgb(image, name)


def picture_size(source: Source) -> tuple[int, int]:
    """Width and height that `read_picture` gives, from the header alone.

    Raises:
        PictureError: no such file, or not a picture.
    """
    if isinstance(source, Image.Image):
        return _upright_size(source)
    if isinstance(source, bytes):
        return _upright_size(_identify(io.BytesIO(source), f"the picture of {len(source)} bytes"))
    with open_file(Path(source)) as stream:
        return _upright_size(_identify(stream, str(source)))


def read_mask(source: Source, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Image.Image:
    """Read an inpainting mask: white is painted anew, black is kept.

    A picture with transparent parts is read by its alpha instead: transparent is painted anew. Any
    other picture is read by its brightness.

    Args:
        source: a path, the content of a file, or a Pillow picture.
        max_pixels: largest width times height.

    Returns:
        A new picture in mode `L`, upright.

    Raises:
        PictureError: as `read_picture`.
    """
    picture = read_layer(source, max_pixels=max_pixels)
    if picture.mode == "RGBA":
        inverted = ImageOps.invert(picture.getchannel("A"))
        if inverted.getbbox() is not None:
            return inverted
    return picture.convert("L")


def _upright_size(image: Image.Image) -> tuple[int, int]:
    if image.format == "TIFF":  # Pillow's decoder turns these itself and says their final size
        return image.size
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # `read_picture` leaves such a picture as it lies, too, and says so
        orientation = 1
    return (image.height, image.width) if orientation in (5, 6, 7, 8) else image.size


def _open_upright(source: Source, max_pixels: int) -> tuple[Image.Image, str]:
    """The decoded first frame with its orientation applied, and its name for messages."""
    if isinstance(source, Image.Image):
        name = getattr(source, "filename", "") or "the picture"
        return _decode(source, name, max_pixels), name
    if isinstance(source, bytes):
        name = f"the picture of {len(source)} bytes"
        return _decode(_identify(io.BytesIO(source), name), name, max_pixels, first=True), name
    name = str(source)
    with open_file(Path(source)) as stream:
        return _decode(_identify(stream, name), name, max_pixels, first=True), name


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises `PictureError` for anything else."""
    try:
        if path.is_file():  # a pipe or a device would block
            return path.open("rb")
        what = "is not a file" if path.exists() else "does not exist"
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise PictureError(f"{path} cannot be read: {error}") from error
    raise PictureError(f"{path} {what}")


def _identify(stream: BinaryIO, name: str) -> Image.Image:
    Image.init()
    formats = [each for each in FORMATS if each in Image.OPEN]
    try:
        return Image.open(stream, formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureError(f"{name} is too large: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # decoders raise anything on files made to break them
        raise PictureError(
            f"{name} is not a picture that can be read, or it is cut short; "
            f"readable are {', '.join(formats)}"
        ) from error


def _decode(image: Image.Image, name: str, max_pixels: int, *, first: bool = False) -> Image.Image:
    check_size(image.size, name, max_pixels)
    try:
        if first and image.format != "MPO" and getattr(image, "is_animated", False):
            image.seek(0)
            _notice(f"{name} has several frames or pages; the first is used")
        image.load()
    except MemoryError:
        raise
    except Exception as error:
        raise PictureError(f"{name} is damaged or cut short: {error}") from error
    try:
        return ImageOps.exif_transpose(image)
    except Exception as error:  # pixels without a fault, EXIF with one
        _notice(f"the orientation of {name} cannot be read: {error}")
        return image


def _notice(message: str) -> None:
    warnings.warn(message, PictureNotice, stacklevel=5)


def check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    """Raise `PictureError` for a picture without pixels or with more than `max_pixels`."""
    width, height = size
    if width < 1 or height < 1:
        raise PictureError(f"{name} is {width}x{height}: it has no pixels")
    if width * height > max_pixels:
        raise PictureError(
            f"{name} is {width}x{height}, {width * height} pixels; at most {max_pixels} are read. "
            "Shrink it, or raise max_pixels"
        )


def check_background(background: tuple[int, int, int]) -> None:
    """Raise `ValueError` for what is no colour in 0..255."""
    if len(background) != 3 or not all(0 <= value <= 255 for value in background):
        raise ValueError(f"background is {background!r}; it must be three numbers from 0 to 255")
