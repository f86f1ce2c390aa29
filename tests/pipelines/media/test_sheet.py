"""Contact sheets."""

import pytest
from PIL import Image

from sana_like_pipelines.media import contact_sheet

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 8, 7), (90, 80, 70)]


def pictures():
    return [Image.new("RGB", (40, 30 + i), colour) for i, colour in enumerate(COLOURS)]


@pytest.mark.parametrize("columns", [None, 1, 2, 5, 99])
@pytest.mark.parametrize("labels", [None, ["a caption that is much wider than its cell"] * 5])
def test_every_picture_is_on_the_sheet_whole(columns, labels):
    sheet = contact_sheet(pictures(), labels, columns)
    seen = {colour: count for count, colour in sheet.getcolors(maxcolors=100_000)}
    for index, colour in enumerate(COLOURS):
        assert seen[colour] >= 40 * (30 + index)
    across = {None: 3, 99: 5}.get(columns, columns)
    assert sheet.width == across * (40 + 8) + 8


def test_large_pictures_are_shrunk_and_small_ones_kept():
    sheet = contact_sheet(
        [Image.new("RGB", (400, 100), "red"), Image.new("RGB", (9, 9), "blue")], side=64
    )
    colours = {colour: count for count, colour in sheet.getcolors(maxcolors=100_000)}
    assert sheet.width == 2 * (64 + 8) + 8
    assert (colours[255, 0, 0], colours[0, 0, 255]) == (64 * 16, 81)


def test_labels_of_any_script_and_length_are_drawn():
    labels = ["two\nlines", "日本語 🦊", "x" * 10_000, "", "\0\t"]
    assert contact_sheet(pictures(), labels).size == contact_sheet(pictures(), [""] * 5).size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": []}, "at least one"),
        ({"images": pictures(), "labels": ["a"]}, "1 labels were given for 5 pictures"),
        ({"images": pictures(), "columns": 0}, "columns is 0"),
        ({"images": pictures(), "side": 0}, "side is 0"),
    ],
)
def test_misuse_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        contact_sheet(**arguments)
