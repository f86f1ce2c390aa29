"""Contact sheets: many pictures on one, a line of text under each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

_GAP = 8
_TEXT_HEIGHT = 18
_TEXT_SIZE = 12
_TEXT_COLOUR = (60, 60, 60)


def contact_sheet(
    images: Sequence[Image.Image],
    labels: Sequence[str] | None = None,
    columns: int | None = None,
    *,
    side: int = 512,
) -> Image.Image:
    """Lay pictures out in rows on white, each centred in its cell with its label below.

    Args:
        images: at least one, of any sizes; those larger than `side` are shrunk, none is enlarged.
        labels: one per picture; line breaks become spaces, and what is wider than the cell ends in
            an ellipsis.
        columns: cells per row; `None` makes the sheet about square.
        side: longest side of a picture on the sheet, in pixels.

    Returns:
        A picture in mode `RGB`.

    Raises:
        ValueError: no pictures, another number of labels, or fewer than one column or pixel.
    """
    if not images:
        raise ValueError("a contact sheet needs at least one picture")
    if labels is not None and len(labels) != len(images):
        raise ValueError(f"{len(labels)} labels were given for {len(images)} pictures")
    columns = math.ceil(math.sqrt(len(images))) if columns is None else columns
    if columns < 1 or side < 1:
        raise ValueError(f"columns is {columns} and side is {side}; both must be at least 1")
    columns = min(columns, len(images))
    small = [_fit(image, side) for image in images]
    width = max(image.width for image in small)
    height = max(image.height for image in small)
    row = height + _GAP + (_TEXT_HEIGHT if labels is not None else 0)
    rows = math.ceil(len(small) / columns)
    sheet = Image.new("RGB", (columns * (width + _GAP) + _GAP, rows * row + _GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(_TEXT_SIZE)
    for index, image in enumerate(small):
        left = _GAP + index % columns * (width + _GAP)
        top = _GAP + index // columns * row
        sheet.paste(image, (left + (width - image.width) // 2, top + (height - image.height) // 2))
        if labels is not None:
            line = _shorten(" ".join(labels[index].split()), width, font)
            draw.text((left, top + height + 2), line, fill=_TEXT_COLOUR, font=font)
    return sheet


def _fit(image: Image.Image, side: int) -> Image.Image:
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def _shorten(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if font.getlength(text) <= width:
        return text
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if font.getlength(f"{text[:middle]}…") <= width:
            fits = middle
        else:
            too_long = middle
    return f"{text[:fits]}…"
