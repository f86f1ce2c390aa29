from __future__ import annotations

import pytest
from PIL import Image

from sana_like_app.sheet import GAP, LARGEST_CELL, contact_sheet


def test_every_picture_is_on_the_sheet() -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 8, 7), (90, 80, 70)]
    pictures = [Image.new("RGB", (40, 30 + i), colour) for i, colour in enumerate(colours)]
    sheet = contact_sheet(pictures, ["a long caption that is wider than its cell"] * 5)
    seen = {colour for _, colour in sheet.getcolors(maxcolors=100_000)}
    assert seen.issuperset(colours)
    assert sheet.width == 3 * (40 + GAP) + GAP


def test_large_pictures_are_shrunk() -> None:
    sheet = contact_sheet([Image.new("RGB", (4 * LARGEST_CELL, LARGEST_CELL), "red")], ["x"])
    assert sheet.width == LARGEST_CELL + 2 * GAP


def test_captions_must_match() -> None:
    with pytest.raises(ValueError, match="captions"):
        contact_sheet([Image.new("RGB", (4, 4))], [])
