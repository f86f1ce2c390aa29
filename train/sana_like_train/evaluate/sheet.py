"""Contact sheets: pictures in a grid, a line of text under each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from sana_like.weights.files import replacing

_MARGIN = 8
_TEXT_HEIGHT = 16


def contact_sheet(
    pictures: Sequence[Image.Image],
    texts: Sequence[str],
    *,
    columns: int = 8,
    side: int = 128,
) -> Image.Image:
    """Lay `pictures` out in rows of `columns`, each scaled to fit `side` pixels, on white.

    Texts longer than their picture is wide are cut with an ellipsis.
    """
    if len(pictures) != len(texts) or not pictures or columns < 1:
        raise ValueError(f"{len(pictures)} pictures, {len(texts)} texts, {columns} columns")
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    cell_width, cell_height = side + _MARGIN, side + _TEXT_HEIGHT + _MARGIN
    sheet = Image.new(
        "RGB", (columns * cell_width + _MARGIN, rows * cell_height + _MARGIN), "white"
    )
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=11)
    for index, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
        left = _MARGIN + index % columns * cell_width
        top = _MARGIN + index // columns * cell_height
        small = picture.convert("RGB")
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        sheet.paste(small, (left + (side - small.width) // 2, top + (side - small.height) // 2))
        line = _shorten(text, side, font)
        draw.text((left, top + side + 1), line, fill=(60, 60, 60), font=font)
    return sheet


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write `sheet` to `path` as PNG, whole or not at all."""
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)


def _shorten(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"
