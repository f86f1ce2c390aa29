"""A contact sheet: all pictures of a run on one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

GAP = 8
CAPTION = 18
LARGEST_CELL = 512


def contact_sheet(pictures: Sequence[Image], captions: Sequence[str]) -> Image:
    """Put `pictures` in rows on white, each with its caption below, cut where it is too long.

    Args:
        pictures: at least one, of any sizes; those with a side above 512 px are shrunk.
        captions: one per picture.

    Returns:
        An RGB picture, about square.

    Raises:
        ValueError: no pictures, or another number of captions.
    """
    from PIL import Image, ImageDraw, ImageFont

    if not pictures or len(pictures) != len(captions):
        raise ValueError(f"{len(pictures)} pictures need as many captions, got {len(captions)}")
    cells = []
    for picture in pictures:
        cell = picture.convert("RGB")
        cell.thumbnail((LARGEST_CELL, LARGEST_CELL))
        cells.append(cell)
    width = max(cell.width for cell in cells) + GAP
    height = max(cell.height for cell in cells) + GAP + CAPTION
    columns = math.ceil(math.sqrt(len(cells)))
    rows = math.ceil(len(cells) / columns)
    sheet = Image.new("RGB", (columns * width + GAP, rows * height + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    for index, (cell, caption) in enumerate(zip(cells, captions, strict=True)):
        left, top = GAP + index % columns * width, GAP + index // columns * height
        sheet.paste(cell, (left, top))
        text = " ".join(caption.split())
        while text and draw.textlength(text, font=font) > width - GAP:
            text = text[:-1]
        draw.text((left, top + cell.height + 2), text, fill="black", font=font)
    return sheet
