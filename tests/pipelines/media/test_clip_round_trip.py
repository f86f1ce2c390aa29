"""Clips that are written read back with the same count, rate, size and colours."""

import json
from fractions import Fraction

import numpy as np
import pytest

from sana_like_pipelines.media import (
    ClipError,
    PictureError,
    clip_writer,
    exact_rate,
    probe_clip,
    read_clip,
    read_recipe,
    sidecar_path,
    stream_clip,
    write_clip,
)

RATES = [8, "23.976", 24, 60]
RECIPE = {"prompt": "ein Äpfel 🍎 " * 900, "seed": 3, "settings": {"frames": 25}}


def frames(count, size=(32, 48)):
    """Frames of slowly changing colours with a bright square that walks; uint8 [F, Y, X, 3]."""
    height, width = size
    clip = np.empty((count, height, width, 3), np.uint8)
    for place in range(count):
        clip[place] = (40 + place % 100, 120, 200 - place % 100)
        left = place % max(width - 8, 1)
        clip[place, 4:12, left : left + 8] = (240, 230, 60)
    return clip


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("count", [1, 5, 300])
@pytest.mark.parametrize("size", [(32, 48), (33, 47), (32, 47)])
def test_mp4_reads_back(tmp_path, count, rate, size):
    clip = frames(count, size)
    path = write_clip(clip, tmp_path / "clip.mp4", rate)
    back = read_clip(path)
    assert back.frames.shape == clip.shape
    assert back.rate == exact_rate(rate)
    means = clip.mean((1, 2)), back.frames.mean((1, 2))
    assert np.abs(means[0] - means[1]).max() < 3
    assert np.abs(means[0].mean(0) - means[1].mean(0)).max() < 2
    assert np.abs(clip.astype(int) - back.frames)[:, :3].mean() < 3  # nothing is shifted


@pytest.mark.parametrize("rate", [8, "23.976", 24, 50])
@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("kind", ["a.webp", "a.gif", "folder"])
def test_other_formats_read_back(tmp_path, kind, count, rate):
    clip = frames(count, (33, 47))
    clip[1:4] = clip[1:2]  # equal neighbours, which encoders join to one frame
    path = write_clip(clip, tmp_path / kind, rate, RECIPE, quality=100)
    back = read_clip(path)
    assert back.frames.shape == clip.shape
    assert back.rate == exact_rate(rate)
    assert np.abs(clip.mean((1, 2)) - back.frames.mean((1, 2))).max() < 3
    if kind != "a.gif":
        assert np.array_equal(back.frames, clip)
    assert read_recipe(path) == RECIPE


@pytest.mark.parametrize("name", ["a.mp4", "a.webp", "a.gif", "folder"])
def test_frames_that_are_all_the_same(tmp_path, name):
    path = write_clip([frames(1)[0]] * 7, tmp_path / name, "23.976", quality=100)
    assert read_clip(path).frames.shape[0] == len(read_clip(path, 23.976).frames) == 7


def test_webp_is_lossy_unless_asked(tmp_path):
    clip = np.random.default_rng(0).integers(0, 255, (3, 32, 32, 3), dtype=np.uint8)
    small = write_clip(clip, tmp_path / "a.webp", 8, quality=50)
    exact = write_clip(clip, tmp_path / "b.webp", 8, quality=100)
    assert small.stat().st_size < exact.stat().st_size / 2


def test_rate_in_the_file_is_the_exact_fraction(tmp_path):
    import av

    path = write_clip(frames(5), tmp_path / "a.mp4", 23.976)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == stream.base_rate == Fraction(24000, 1001)
        assert stream.duration * stream.time_base == Fraction(5 * 1001, 24000)


def test_mp4_is_what_players_want(tmp_path):
    import av

    path = write_clip(frames(30), tmp_path / "a.mp4", 24)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        assert (context.name, context.pix_fmt) == ("h264", "yuv420p")
        frame = next(container.decode(video=0))
        assert (frame.colorspace, frame.color_range) == (1, 1)


def test_odd_sides_are_even_in_the_file_and_say_so(tmp_path):
    import av

    path = write_clip(frames(5, (33, 47)), tmp_path / "a.mp4", 24)
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        assert (context.height, context.width) == (34, 48)
    info = probe_clip(path)
    assert (info.height, info.width, info.frames) == (33, 47, 5)


def test_recipe_is_inside_and_beside(tmp_path):
    path = write_clip(frames(2), tmp_path / "a.mp4", 24, RECIPE)
    assert json.loads(sidecar_path(path).read_text("utf-8")) == RECIPE
    sidecar_path(path).unlink()
    assert read_recipe(path) == RECIPE
    write_clip(frames(2), path, 24)
    with pytest.raises(PictureError, match="carries no recipe"):
        read_recipe(path)


def test_no_sidecar_when_not_wanted_and_none_of_an_earlier_clip(tmp_path):
    path = write_clip(frames(1), tmp_path / "a.mp4", 24, RECIPE)
    write_clip(frames(1), path, 24, RECIPE, sidecar=False)
    assert not sidecar_path(path).exists()
    assert read_recipe(path) == RECIPE


def test_recipe_may_not_use_the_key_of_the_facts(tmp_path):
    with pytest.raises(PictureError, match="'clip'"):
        write_clip(frames(1), tmp_path / "a.webp", 8, {"clip": 1})


def test_same_frames_in_any_form(tmp_path):
    import torch
    from PIL import Image

    clip = frames(3)
    tensors = torch.from_numpy(clip).movedim(-1, 1)
    forms = {
        "bytes": clip,
        "floats": clip / 255,
        "pictures": [Image.fromarray(frame) for frame in clip],
        "tensors": tensors.float() / 255,
        "half": tensors.double() / 255,
        "byte-tensors": tensors,
    }
    for name, form in forms.items():
        write_clip(form, tmp_path / name, 8)
        assert np.array_equal(read_clip(tmp_path / name).frames, clip), name


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (np.zeros((4, 4), np.uint8), r"\[4, 4\]"),
        (np.zeros((4, 4, 4), np.uint8), r"must be \[Y, X, 3\]"),
        (np.zeros((0, 4, 3), np.uint8), "shape"),
        (np.full((4, 4, 3), 255.0), "outside"),
        (np.full((4, 4, 3), np.nan), "outside"),
        (np.zeros((4, 4, 3), np.int64), "outside"),
    ],
)
def test_what_is_no_frame_is_refused(tmp_path, frame, message):
    with pytest.raises(ClipError, match=message):
        write_clip([frame], tmp_path / "a.mp4", 24)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.mp4", "a.webp", "a.gif", "folder"])
def test_one_size_and_at_least_one_frame(tmp_path, name):
    with pytest.raises(ClipError, match="first was 4x4"):
        write_clip(
            [np.zeros((4, 4, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)], tmp_path / name, 8
        )
    with pytest.raises(ClipError, match="at least one frame"):
        write_clip([], tmp_path / name, 8)
    assert list(tmp_path.iterdir()) == []


def test_what_a_format_cannot_hold_is_refused_before_the_first_frame(tmp_path):
    with pytest.raises(ClipError, match=r"\.mp4, \.webp, \.gif"):
        clip_writer(tmp_path / "a.avi", 24)
    with pytest.raises(ClipError, match="50 that this format"):
        clip_writer(tmp_path / "a.gif", 60)
    with pytest.raises(ClipError, match="quality"):
        clip_writer(tmp_path / "a.mp4", 24, quality=0)
    with pytest.raises(PictureError, match="JSON"):
        clip_writer(tmp_path / "a.mp4", 24, {"x": float("nan")})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ClipError, match="exists already"):
        clip_writer(tmp_path / "full", 24)
    with pytest.raises(ClipError, match="is a folder"):
        (tmp_path / "a.mp4").mkdir()
        clip_writer(tmp_path / "a.mp4", 24)


@pytest.mark.parametrize("name", ["ä 中 #%d.mp4", "note: clip.mp4", "a'b.mp4"])
def test_any_file_name(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_clip(frames(2), name, 24)
    assert len(read_clip(name).frames) == 2


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        (24, 24),
        (23.976, Fraction(24000, 1001)),
        (23.98, Fraction(24000, 1001)),
        ("29.97", Fraction(30000, 1001)),
        (59.94, Fraction(60000, 1001)),
        ("24000/1001", Fraction(24000, 1001)),
        (Fraction(2997, 125), Fraction(24000, 1001)),
        (12.5, Fraction(25, 2)),
        (0.5, Fraction(1, 2)),
        (15.0, 15),
        (1000, 1000),
    ],
)
def test_exact_rate(given, rate):
    assert exact_rate(given) == rate
    assert exact_rate(str(rate)) == rate


@pytest.mark.parametrize(
    "given", [0, -1, 1001, "fast", None, float("nan"), float("inf"), "1/0", True]
)
def test_what_is_no_rate(given):
    with pytest.raises(ClipError, match="no frame rate"):
        exact_rate(given)


def test_stream_writes_while_frames_are_made(tmp_path):
    sizes = []
    with clip_writer(tmp_path / "a.mp4", 24, quality=100) as writer:
        noise = np.random.default_rng(0)
        for _ in range(120):
            writer.write(noise.integers(0, 255, (64, 64, 3), dtype=np.uint8))
            sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert sizes[-1] > sizes[60] > 0  # the file grows, so the memory need not
    assert len(list(stream_clip(tmp_path / "a.mp4"))) == 120
