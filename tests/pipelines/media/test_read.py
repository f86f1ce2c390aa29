"""Picture files as users have them."""

import contextlib
import io
import struct
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageDraw

from sana_like_pipelines.media import PictureError, PictureNotice, read_mask, read_picture
from sana_like_pipelines.media.read import picture_size, read_layer

MARKER = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}

# What an EXIF orientation means: how the upright picture was stored.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def marker(width=48, height=32):
    """A picture that differs under every rotation and flip."""
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, width // 2 - 1, height // 2 - 1), fill=MARKER["red"])
    draw.rectangle((width // 2, 0, width, height // 2 - 1), fill=MARKER["green"])
    draw.rectangle((0, height // 2, width // 2 - 1, height), fill=MARKER["blue"])
    return image


def encoded(image, kind, **arguments):
    stream = io.BytesIO()
    image.save(stream, format=kind, **arguments)
    return stream.getvalue()


def distance(image, other):
    return np.abs(np.asarray(image).astype(int) - np.asarray(other).astype(int)).mean()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_upright_once_and_not_again(orientation, kind, tmp_path):
    upright = marker()
    transpose = STORED[orientation]
    stored = upright if transpose is None else upright.transpose(transpose)
    exif = Image.Exif()
    exif[0x0112] = orientation
    quality = {"quality": 95} if kind in ("JPEG", "WEBP") else {}
    data = encoded(stored, kind, exif=exif, **quality)
    read = read_picture(data)
    assert read.size == picture_size(data) == upright.size and distance(read, upright) < 6
    read.save(tmp_path / "again.jpg", quality=95)
    again = read_picture(tmp_path / "again.jpg")
    assert again.size == upright.size and distance(again, upright) < 6


def test_the_callers_picture_is_left_as_it_is():
    image = marker().convert("RGBA")
    image.putpixel((0, 0), (10, 20, 30, 0))
    before = image.tobytes()
    read = read_picture(image)
    assert image.tobytes() == before and image.mode == "RGBA"
    assert read is not image and read.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("background", [(255, 255, 255), (0, 0, 0), (10, 200, 90)])
def test_half_transparent_is_flattened_on_the_background(background):
    image = Image.new("RGBA", (4, 4), (200, 100, 0, 128))
    expected = [(c * 128 + b * 127) / 255 for c, b in zip((200, 100, 0), background, strict=True)]
    read = read_picture(encoded(image, "PNG"), background=background)
    assert read.mode == "RGB" and np.allclose(read.getpixel((1, 1)), expected, atol=1)


def transparent_variants():
    grey_alpha = Image.new("LA", (4, 4), (60, 0))
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    grey = Image.new("L", (4, 4), 60)
    rgb = Image.new("RGB", (4, 4), (1, 2, 3))
    bits = Image.new("1", (4, 4), 0)
    grey16 = Image.fromarray(np.full((4, 4), 700, np.uint16))
    return {
        "grey and alpha": encoded(grey_alpha, "PNG"),
        "palette, one index": encoded(palette, "PNG", transparency=1),
        "palette, table": encoded(palette, "PNG", transparency=bytes([255, 0])),
        "palette, gif": encoded(palette, "GIF", transparency=1),
        "grey, one value": encoded(grey, "PNG", transparency=60),
        "rgb, one colour": encoded(rgb, "PNG", transparency=(1, 2, 3)),
        "1 bit, one value": encoded(bits, "PNG", transparency=0),
        "16-bit grey, one value": encoded(grey16, "PNG", transparency=700),
        "rgba, webp": encoded(Image.new("RGBA", (4, 4), (1, 2, 3, 0)), "WEBP"),
        "palette and alpha": palette.convert("PA"),
        "premultiplied": Image.new("RGBA", (4, 4), (9, 9, 9, 0)).convert("RGBa"),
    }


@pytest.mark.parametrize("name", transparent_variants())
def test_every_kind_of_transparency_shows_the_background(name):
    source = transparent_variants()[name]
    if name == "palette and alpha":
        source.putalpha(0)
    assert read_picture(source, background=(7, 77, 177)).getpixel((1, 1)) == (7, 77, 177)


def test_opaque_parts_beside_transparent_ones_keep_their_colour():
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([250, 10, 20, 0, 255, 0])
    palette.putpixel((1, 0), 1)
    read = read_picture(encoded(palette, "PNG", transparency=1))
    assert [read.getpixel((x, 0)) for x in (0, 1)] == [(250, 10, 20), (255, 255, 255)]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_is_scaled_not_clipped(kind):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(4, 0)
    values = np.asarray(read_picture(encoded(Image.fromarray(ramp), kind))) / 255
    assert values.shape == (4, 256, 3) and values.mean() == pytest.approx(0.5, abs=0.01)
    assert len(np.unique(values)) > 250
    assert values[0, 0].tolist() == [0, 0, 0] and values[0, -1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [">u2", "<u2"])
def test_16_bit_grey_in_either_byte_order(dtype):
    ramp = Image.fromarray(np.linspace(0, 65535, 256).astype(np.uint16)[None])
    mode = "I;16B" if dtype == ">u2" else "I;16L"
    data = np.asarray(ramp).astype(dtype).tobytes()
    swapped = Image.frombytes(mode if mode == "I;16B" else "I;16", ramp.size, data)
    assert np.asarray(read_picture(swapped)).mean() / 255 == pytest.approx(0.5, abs=0.01)


def test_16_bit_colour_is_scaled():
    data = _png_16_bit_rgb((65535, 32768, 0))
    assert read_picture(data).getpixel((0, 0)) == (255, 128, 0)


def _png_16_bit_rgb(colour):
    import zlib

    def chunk(kind, body):
        tail = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", tail)

    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" + struct.pack(">3H", *colour))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def test_float_grey_is_read_from_0_to_1_and_refused_outside():
    ramp = np.linspace(0, 1, 100, dtype=np.float32)[None]
    values = np.asarray(read_picture(encoded(Image.fromarray(ramp), "TIFF"))) / 255
    assert values.mean() == pytest.approx(0.5, abs=0.01)
    for wrong in (ramp * 255, ramp - 0.5, ramp * np.nan):
        with pytest.raises(PictureError, match="grey values from"):
            read_picture(Image.fromarray(wrong))
    with pytest.raises(PictureError, match="grey values from 0 to 70000"):
        read_picture(Image.fromarray(np.array([[0, 70000]], np.int32)))


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_colours_are_plausible(kind):
    for name, colour in MARKER.items():
        quality = {"quality": 95} if kind == "JPEG" else {}
        data = encoded(Image.new("RGB", (16, 16), colour).convert("CMYK"), kind, **quality)
        read = read_picture(data).getpixel((8, 8))
        assert np.argmax(read) == np.argmax(colour), name
        assert np.allclose(read, colour, atol=12), (name, read)


def test_an_embedded_profile_is_converted_to_srgb():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ"))
    linear = _linear_profile()
    grey = Image.new("RGB", (8, 8), (128, 128, 128))
    read = read_picture(encoded(grey, "PNG", icc_profile=linear)).getpixel((0, 0))
    assert read[0] == pytest.approx(188, abs=3)  # linear one half is sRGB 188
    with pytest.warns(PictureNotice, match="colour profile"):
        wrong = read_picture(encoded(grey, "PNG", icc_profile=profile.tobytes()))
    assert wrong.getpixel((0, 0)) == (128, 128, 128)
    with pytest.warns(PictureNotice, match="colour profile"):
        broken = read_picture(encoded(grey, "PNG", icc_profile=b"no profile"))
    assert broken.getpixel((0, 0)) == (128, 128, 128)


def _linear_profile():
    """The sRGB profile with its curve (all channels share one) replaced by `y = x`."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    at = data.index(b"para")
    data[at : at + 16] = b"para" + struct.pack(">IHHi", 0, 0, 0, 65536)
    return bytes(data)


def test_other_modes_keep_their_colour():
    image = marker()
    for mode in ("YCbCr", "HSV", "RGBX", "LAB", "P"):
        if mode == "LAB":
            convert = ImageCms.buildTransform(
                ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
            )
            other = ImageCms.applyTransform(image, convert)
        else:
            other = image.quantize(8) if mode == "P" else image.convert(mode)
        assert distance(read_picture(other), image) < 4, mode
    assert read_picture(image.convert("1")).mode == "RGB"


def test_smallest_and_most_stretched(tmp_path):
    assert read_picture(encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG")).size == (1, 1)
    Image.new("L", (20000, 10), 9).save(tmp_path / "wide.png")
    assert read_picture(tmp_path / "wide.png").size == (20000, 10)
    with pytest.raises(PictureError, match="no pixels"):
        read_picture(Image.new("RGB", (0, 5)))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_an_animation_with_a_notice(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in MARKER.values()]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    with pytest.warns(PictureNotice, match="first is used"):
        read = read_picture(data)
    assert np.allclose(read.getpixel((4, 4)), MARKER["red"], atol=12)


def test_one_frame_gives_no_notice(tmp_path):
    marker().save(tmp_path / "still.gif")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_picture(tmp_path / "still.gif")
        read_picture(encoded(marker(), "JPEG"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
@pytest.mark.parametrize("part", [0, 0.01, 0.3, 0.6, 0.9])
def test_cut_files_are_refused_by_name(kind, part, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    path = tmp_path / f"cut.{kind.lower()}"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(PictureError, match=path.name):
        read_picture(path)


def test_broken_exif_does_not_lose_the_picture():
    data = encoded(marker(), "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\xff" * 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert distance(read_picture(data), marker()) == 0
        assert picture_size(data) == marker().size


def test_layers_keep_their_transparency():
    half = Image.new("RGBA", (4, 4), (255, 0, 0, 128))
    assert read_layer(encoded(half, "PNG")).getpixel((0, 0)) == (255, 0, 0, 128)
    assert read_layer(encoded(half.convert("RGB"), "PNG")).mode == "RGB"


def test_bombs_are_refused_by_their_header(tmp_path):
    with pytest.raises(PictureError, match=r"100x100, 10000 pixels; at most 9999"):
        read_picture(encoded(Image.new("1", (100, 100)), "PNG"), max_pixels=9999)
    data = bytearray(encoded(Image.new("1", (8, 8)), "BMP"))
    data[18:26] = struct.pack("<ii", 30_000, 30_000)
    with pytest.raises(PictureError, match=r"too large|at most"):
        read_picture(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<!DOCTYPE html><html></html>",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"\0" * 2000,
        b"P6 junk",
    ],
)
def test_what_is_not_a_picture_is_refused(data, tmp_path):
    path = tmp_path / "thing.png"
    path.write_bytes(data)
    for source, name in ((path, "thing.png"), (data, f"{len(data)} bytes")):
        with pytest.raises(PictureError, match=name):
            read_picture(source)


@given(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b"",
            b"GIF89a",
            b"\x89PNG\r\n\x1a\n",
            b"\xff\xd8\xff",
            b"BM",
            b"II*\0",
            b"P5\n",
            b"RIFF\0\0\0\0WEBP",
        ]
    ),
)
def test_random_bytes_never_raise_anything_else(body, start):
    with warnings.catch_warnings(), contextlib.suppress(PictureError):
        warnings.simplefilter("ignore")
        assert read_picture(start + body, max_pixels=10_000).mode == "RGB"


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(PictureError, match=r"nothing\.png does not exist"):
        read_picture(tmp_path / "nothing.png")
    with pytest.raises(PictureError, match="is not a file"):
        read_picture(str(tmp_path))
    with pytest.raises(PictureError):
        read_picture("a\0b.png")
    with pytest.raises(ValueError, match="background"):
        read_picture(marker(), background=(0, 0, 256))


def test_masks_by_brightness_and_by_transparency():
    grey = Image.new("L", (2, 1), 0)
    grey.putpixel((1, 0), 255)
    assert list(read_mask(encoded(grey, "PNG")).tobytes()) == [0, 255]
    assert list(read_mask(grey.convert("1")).tobytes()) == [0, 255]
    deep = Image.fromarray(np.array([[0, 65535]], np.uint16))
    assert list(read_mask(encoded(deep, "PNG")).tobytes()) == [0, 255]
    opaque = grey.convert("RGBA")
    assert list(read_mask(opaque).tobytes()) == [0, 255]
    hole = Image.new("RGBA", (2, 1), (255, 255, 255, 255))
    hole.putpixel((1, 0), (0, 0, 0, 0))
    assert list(read_mask(encoded(hole, "PNG")).tobytes()) == [0, 255]
    assert read_mask(hole).mode == "L"
