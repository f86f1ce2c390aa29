"""Writing pictures and recipes, and reading the recipes back."""

import errno
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sana_like_pipelines.media import (
    PictureError,
    parameters_text,
    read_picture,
    read_recipe,
    sidecar_path,
    write_picture,
)

RECIPE = {
    "software": "sana-like",
    "version": "0.1.0",
    "pipeline": "SanaPipeline",
    "model": "emoji",
    "prompt": "a red apple, 3d",
    "negative_prompt": "blurry",
    "seed": 7,
    "settings": {"num_inference_steps": 20, "guidance_scale": 4.5, "width": 300, "height": 200},
    "scheduler": {"_class_name": "DPMSolverMultistepScheduler", "flow_shift": 3.0},
}
KINDS = ["png", "webp", "jpg", "jpeg"]


def picture(size=(24, 16)):
    values = np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("kind", KINDS)
def test_recipe_is_inside_and_beside(kind, tmp_path):
    path = write_picture(picture(), tmp_path / f"new folder/apple.{kind}", RECIPE)
    beside = sidecar_path(path)
    assert sorted(path.parent.iterdir()) == sorted([path, beside])
    assert read_recipe(path) == read_recipe(beside) == RECIPE
    beside.unlink()
    assert read_recipe(path) == RECIPE


@pytest.mark.parametrize("kind", ["png", "webp"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_pixels_are_kept_bit_by_bit(kind, mode, tmp_path):
    image = picture().convert(mode)
    if mode == "RGBA":
        image.putalpha(picture().convert("L"))
    path = write_picture(image, tmp_path / f"a.{kind}", RECIPE, sidecar=False)
    with Image.open(path) as stored:
        assert np.array_equal(np.asarray(stored.convert(mode)), np.asarray(image))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_recipe_is_optional(tmp_path):
    path = write_picture(picture(), tmp_path / "plain.png")
    with Image.open(path) as stored:
        assert stored.info == {}
    with pytest.raises(PictureError, match="carries no recipe"):
        read_recipe(path)


def test_no_earlier_sidecar_speaks_of_a_later_picture(tmp_path):
    for arguments in ({"recipe": None}, {"recipe": RECIPE, "sidecar": False}):
        path = write_picture(picture(), tmp_path / "a.png", {"prompt": "earlier"})
        assert sidecar_path(path).exists()
        write_picture(picture(), path, **arguments)
        assert not sidecar_path(path).exists()


def test_metadata_of_the_source_is_not_passed_on(tmp_path):
    image = picture()
    image.info |= {"icc_profile": b"x", "Comment": "secret", "exif": b"Exif\0\0"}
    path = write_picture(image, tmp_path / "clean.png")
    assert b"secret" not in path.read_bytes()


def test_other_tools_find_the_parameters(tmp_path):
    text = (
        "a red apple, 3d\nNegative prompt: blurry\nSteps: 20, Sampler: DPMSolverMultistepScheduler"
        ", CFG scale: 4.5, Seed: 7, Model: emoji, Size: 300x200, Version: sana-like 0.1.0"
    )
    assert parameters_text(RECIPE) == text
    with Image.open(write_picture(picture(), tmp_path / "a.png", RECIPE)) as stored:
        assert stored.info["parameters"] == text
        assert json.loads(stored.info["sana_like"]) == RECIPE
    with Image.open(write_picture(picture(), tmp_path / "a.jpg", RECIPE)) as stored:
        comment = stored.getexif().get_ifd(0x8769)[0x9286]
        assert comment == b"UNICODE\0" + text.encode("utf-16-be")
    assert parameters_text({"prompt": "x"}) == "x" and parameters_text({}) == ""


any_text = st.text(st.characters(), max_size=200)  # half surrogates and NUL included
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", ["png", "webp", "jpg"])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(recipe=st.dictionaries(any_text, json_values, max_size=5), prompt=any_text)
def test_any_recipe_comes_back_the_same(kind, recipe, prompt, tmp_path):
    recipe["prompt"] = prompt
    path = write_picture(picture((2, 2)), tmp_path / f"a.{kind}", recipe)
    assert read_recipe(sidecar_path(path)) == recipe
    sidecar_path(path).unlink()
    assert read_recipe(path) == recipe


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", ["x" * 10_000, "日本語の猫 " * 1500, "🦊🏳️‍🌈👩🏽‍🚀" * 1000])
def test_long_prompts(kind, prompt, tmp_path):
    recipe = {**RECIPE, "prompt": prompt}
    path = write_picture(picture(), tmp_path / f"long.{kind}", recipe)
    assert read_recipe(path) == recipe and read_picture(path).size == (24, 16)


def test_a_recipe_too_long_for_jpeg_stands_beside_it_or_is_refused(tmp_path):
    recipe = {**RECIPE, "prompt": "🦊" * 20_000}
    path = write_picture(picture(), tmp_path / "a.jpg", recipe)
    assert read_recipe(path) == recipe and path.stat().st_size < 60_000
    with pytest.raises(PictureError, match=r"b\.jpg has \d+ bytes and a JPEG holds 65000"):
        write_picture(picture(), tmp_path / "b.jpg", recipe, sidecar=False)
    assert not (tmp_path / "b.jpg").exists()


@pytest.mark.parametrize("failing", ["write_bytes", "write_text", "replace"])
@pytest.mark.parametrize("before", [True, False])
def test_a_full_disk_leaves_no_half_file(failing, before, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    old = picture((8, 8))
    if before:
        write_picture(old, path, {"prompt": "old"})
    kept = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}

    def full_disk(self, data, *args, **kwargs):
        if failing != "replace":  # some bytes fit
            with self.open("wb") as handle:
                handle.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"pathlib.Path.{failing}", full_disk)
        with pytest.raises(OSError, match="No space left"):
            write_picture(picture(), path, RECIPE)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == kept


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupted(self, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_picture(picture(), tmp_path / "a.png", RECIPE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "image", "recipe", "message"),
    [
        ("a.gif", picture(), RECIPE, r"a\.gif ends in \.gif"),
        ("a", picture(), RECIPE, "no suffix"),
        ("a.png", picture().convert("CMYK"), RECIPE, "mode CMYK"),
        ("a.jpg", picture().convert("RGBA"), RECIPE, "mode RGBA"),
        ("a.png", picture(), {"x": float("nan")}, "JSON"),
        ("a.png", picture(), {"x": object()}, "JSON"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    name, image, recipe, message, tmp_path
):
    with pytest.raises(PictureError, match=message):
        write_picture(image, tmp_path / "folder" / name, recipe)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PictureError, match="quality"):
        write_picture(picture(), tmp_path / "a.jpg", quality=0)


def test_recipes_that_cannot_be_read_are_refused_by_name(tmp_path):
    cases = {
        "a.json": (b"[1]", "not an object"),
        "b.json": (b"{", "not valid JSON"),
        "c.json": (b"\xff\xfe{}x", "not valid JSON"),
        "d.json": (b"[" * 100_000, "not valid JSON"),
        "e.png": (b"not a picture", "is not a PNG"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(PictureError, match=f"{name}.*{message}|{message}"):
            read_recipe(tmp_path / name)
    with pytest.raises(PictureError, match="does not exist"):
        read_recipe(tmp_path / "nothing.png")


def test_a_stranger_s_description_is_no_recipe(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "holiday"
    picture().save(tmp_path / "a.jpg", exif=exif)
    with pytest.raises(PictureError, match="carries no recipe"):
        read_recipe(tmp_path / "a.jpg")
