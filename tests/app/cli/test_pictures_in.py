"""Picture files as users have them, through `--image`: with strength near 0 they come out again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Cli = Callable[..., Any]
WIDTH, HEIGHT = 48, 32


def marker() -> Image.Image:
    """Red in the upper left corner, blue elsewhere."""
    picture = Image.new("RGB", (WIDTH, HEIGHT), (0, 0, 255))
    picture.paste((255, 0, 0), (0, 0, WIDTH // 2, HEIGHT // 2))
    return picture


@pytest.fixture
def through(cli: Cli, sana: Path, tmp_path: Path) -> Callable[[Path], np.ndarray]:
    """The pixels that the program makes of a file: kept wherever the mask is black."""

    def make(path: Path) -> np.ndarray:
        width, height = 1, 1
        with Image.open(path) as picture:
            width, height = picture.size
            if picture.getexif().get(0x0112, 1) >= 5:
                width, height = height, width
        Image.new("L", (width, height), 0).save(tmp_path / "mask.png")
        done = cli(
            "generate", "x", "--model", sana, "--image", path, "--mask", "mask.png",
            "--steps", 1, "--seed", 1, "--output", "out.png",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert "Traceback" not in done.err
        result = Image.open(tmp_path / "out.png")
        assert result.mode == "RGB" and not result.getexif()
        return np.asarray(result)

    return make


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright_once(
    through: Callable[[Path], np.ndarray], tmp_path: Path, orientation: int
) -> None:
    methods = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = marker()
    if orientation > 1:
        stored = stored.transpose(methods[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "in.png", exif=exif)
    assert np.array_equal(through(tmp_path / "in.png"), np.asarray(marker()))


def test_transparency_is_flattened_on_white(
    through: Callable[[Path], np.ndarray], tmp_path: Path
) -> None:
    for mode, colour in (("RGBA", (255, 0, 0, 128)), ("LA", (0, 128))):
        Image.new(mode, (WIDTH, HEIGHT), colour).save(tmp_path / "in.png")
        pixels = through(tmp_path / "in.png")
        assert abs(int(pixels[0, 0, 1]) - 127) <= 1, mode


def test_sixteen_bits_are_scaled_not_clipped(
    through: Callable[[Path], np.ndarray], tmp_path: Path
) -> None:
    ramp = np.linspace(0, 65535, WIDTH * HEIGHT).astype(np.uint16).reshape(HEIGHT, WIDTH)
    Image.fromarray(ramp).save(tmp_path / "in.png")
    assert abs(through(tmp_path / "in.png").mean() / 255 - 0.5) <= 0.01


def test_cmyk_and_palette(through: Callable[[Path], np.ndarray], tmp_path: Path) -> None:
    marker().convert("CMYK").save(tmp_path / "in.jpg", quality=100, subsampling=0)
    red, _, blue = through(tmp_path / "in.jpg")[2, 2].astype(int)
    assert red > 200 and blue < 60
    marker().quantize(4).save(tmp_path / "in.gif")
    assert np.abs(through(tmp_path / "in.gif").astype(int) - np.asarray(marker())).max() <= 8


def test_one_pixel(through: Callable[[Path], np.ndarray], tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (9, 8, 7)).save(tmp_path / "in.png")
    assert through(tmp_path / "in.png").tolist() == [[[9, 8, 7]]]


def test_the_first_frame_is_taken_with_a_note(cli: Cli, sana: Path, tmp_path: Path) -> None:
    frames = [marker(), Image.new("RGB", (WIDTH, HEIGHT), "green")]
    frames[0].save(tmp_path / "in.gif", save_all=True, append_images=frames[1:])
    done = cli(
        "generate", "x", "--model", sana, "--image", "in.gif", "--steps", 1, "--output", "a.png"
    )
    assert done.code == 0
    assert "note: in.gif has several frames" in done.err


@pytest.mark.parametrize("kind", ["cut", "text", "folder", "bomb"])
def test_files_that_are_no_pictures_are_refused_by_name(
    cli: Cli, sana: Path, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "in.jpg"
    if kind == "cut":
        marker().resize((640, 480)).save(path)
        path.write_bytes(path.read_bytes()[:1500])
    elif kind == "text":
        path.write_text("hello")
    elif kind == "folder":
        path.mkdir()
    else:
        Image.new("1", (20000, 10000)).save(path, format="PNG")
    done = cli(
        "generate", "x", "--model", "no/model", "--image", "in.jpg", "--output", "a.png"
    )  # fmt: skip
    assert done.code == 1
    assert "in.jpg" in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "a.png").exists()


def test_a_very_wide_picture_is_delivered_or_refused_by_its_size(
    cli: Cli, sana: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (20000, 10), "red").save(tmp_path / "in.png")
    done = cli(
        "generate", "x", "--model", sana, "--image", "in.png", "--steps", 1, "--output", "a.png"
    )
    assert done.code == 0, done.err
    assert Image.open(tmp_path / "a.png").size == (20000, 10)
