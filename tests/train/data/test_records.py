from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sana_like_train.data.captions import Caption
from sana_like_train.data.records import composite, load_records


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def png(image: Image.Image) -> bytes:
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    return encoded.getvalue()


RED = png(Image.new("RGB", (4, 6), (255, 0, 0)))


def test_tar_opens_in_any_order_and_after_pickling(emoji_pack: Callable[..., Path]) -> None:
    records = load_records(emoji_pack(5))
    assert len(records) == 15
    forwards = [record.open_picture() for record in records]
    copies = pickle.loads(pickle.dumps(records))
    for index in reversed(range(15)):
        assert torch.equal(copies[index].open_picture(), forwards[index])
    record = records[4]
    assert (record.key, record.concept, record.style) == ("1f001_flat", "1f001", "flat")
    assert (record.group, record.label) == ("food-drink", "thing 1")
    assert record.captions[0] == Caption("thing 1, flat", 0.5)
    assert forwards[4].shape == (3, 32, 32)
    assert forwards[4].dtype == torch.float32


def test_keys_end_at_the_first_dot_of_the_file_name(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        {"v1.0/b.png": RED, "v1.0/b.txt": b"in a folder", "c.png": RED, "c.json": b'{"x": 1}'},
    )
    records = {record.key: record for record in load_records(path)}
    assert set(records) == {"v1.0/b", "c"}
    assert records["v1.0/b"].captions == (Caption("in a folder"),)
    assert records["c"].captions == ()


def test_folder_of_pictures(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.png").write_bytes(RED)
    (tmp_path / "a.txt").write_text("\ufeffone red card\n", "utf-8")
    (tmp_path / "sub" / "b.PNG").write_bytes(RED)
    (tmp_path / "sub" / "b.json").write_text(
        json.dumps({"captions": ["two", {"text": "zwei", "weight": 0.25}]})
    )
    (tmp_path / "c.png").write_bytes(RED)
    (tmp_path / "c.json").write_text('{"caption": "three"}')
    (tmp_path / ".hidden.png").write_bytes(b"not a picture")
    found = {record.key: record.captions for record in load_records(tmp_path)}
    assert found == {
        "a": (Caption("one red card"),),
        "sub/b": (Caption("two"), Caption("zwei", 0.25)),
        "c": (Caption("three"),),
    }


def test_folder_of_tars(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"a.png": RED})
    write_tar(tmp_path / "1.tar", {"b.png": RED})
    assert [record.key for record in load_records(tmp_path)] == ["a", "b"]
    write_tar(tmp_path / "2.tar", {"a.png": RED})
    with pytest.raises(ValueError, match="'a' occurs twice"):
        load_records(tmp_path)


def test_transparency_is_laid_on_the_background() -> None:
    half = Image.fromarray(np.full((2, 2, 4), (255, 0, 0, 51), np.uint8))  # alpha 0.2
    expected = torch.tensor([0.2 + 0.8 * 0.25, 0.8 * 0.5, 0.8 * 1.0]) * 2 - 1
    made = composite(half, (0.25, 0.5, 1.0))
    torch.testing.assert_close(made[:, 0, 0], expected)
    torch.testing.assert_close(composite(half)[:, 1, 1], torch.tensor([1.0, 0.6, 0.6]))
    with pytest.raises(ValueError, match="background"):
        composite(half, (0.0, 0.0, 255.0))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright_once(tmp_path: Path, orientation: int) -> None:
    corner = Image.new("RGB", (32, 16), "white")
    corner.paste((0, 0, 0), (0, 0, 8, 8))  # black corner, top left when upright
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = corner.transpose(turn[orientation]) if orientation in turn else corner
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.png", exif=exif)
    record = load_records(tmp_path)[0]
    picture = record.open_picture()
    assert picture.shape == (3, 16, 32)
    assert record.picture_size() == (16, 32)
    assert picture[:, :8, :8].max() == -1.0
    assert picture[:, 8:].min() == 1.0


def test_modes_of_pictures(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 255, 0, 255, 0, 0])
    palette.save(tmp_path / "palette.png", transparency=1)
    Image.new("LA", (4, 4), (100, 0)).save(tmp_path / "grey.png")
    Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(tmp_path / "print.jpg")
    opened = {record.key: record.open_picture() for record in load_records(tmp_path)}
    assert opened["deep"].mean().abs() < 0.01  # scaled, not clipped
    assert opened["palette"].min() == 1.0  # all transparent: the white below
    assert opened["grey"].min() == 1.0
    assert opened["print"][0].min() > 0.9
    assert opened["print"][1].max() < -0.9


def test_damaged_picture_is_named(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    noise.save(tmp_path / "cut.jpg")
    whole = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no picture")
    # Its decoder would start another program.
    (tmp_path / "script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n")
    whole_png = io.BytesIO()
    noise.save(whole_png, "PNG")
    (tmp_path / "chunk.png").write_bytes(whole_png.getvalue()[:60] + b"\0" * 200)
    for record in load_records(tmp_path):
        with pytest.raises(ValueError, match=f"'{record.key}'"):
            record.open_picture()


def test_tar_cut_off_after_indexing_is_noticed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"a.png": RED})
    record = load_records(path)[0]
    path.write_bytes(path.read_bytes()[:520])
    with pytest.raises(ValueError, match="cut off or changed"):
        record.open_picture()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "no picture"),
        ({"a.txt": b"alone"}, "no picture"),
        ({"a.png": RED, "a.json": b"{"}, "'a'"),
        ({"a.png": RED, "a.json": b"[]"}, "must hold an object"),
        ({"a.png": RED, "a.json": b'{"captions": [3]}'}, "must be texts"),
        ({"a.png": RED, "a.json": b'{"captions": "red"}'}, "must be a list, not 'red'"),
        ({"a.png": RED, "a.json": b'{"captions": [{"text": "r", "weight": NaN}]}'}, "above 0"),
        ({"a.png": RED, "a.json": b'{"captions": [{"text": "r", "weight": 0}]}'}, "above 0"),
        ({"a.png": RED, "a.json": b'{"captions": [{"text": "r", "weight": "1"}]}'}, "above 0"),
        ({"a.png": RED, "a.txt": b"\xff\xfe\xff"}, "UTF-8"),
    ],
)
def test_unusable_sources_are_refused(
    tmp_path: Path, members: dict[str, bytes], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_records(write_tar(tmp_path / "a.tar", members))


def test_compressed_and_missing_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compressed or cut-off"):
        load_records(write_tar(tmp_path / "a.tar", {"a.png": RED}, "w:gz"))
    with pytest.raises(ValueError, match="does not exist"):
        load_records(tmp_path / "nothing.tar")
