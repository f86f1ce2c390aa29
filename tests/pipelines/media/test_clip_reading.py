"""Clips as users have them: any speed, turned, transparent, broken, or made to break the reader."""

import struct
import time
import zlib
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from sana_like_pipelines.media import (
    ClipError,
    probe_clip,
    read_clip,
    read_recipe,
    stream_clip,
    write_clip,
)
from sana_like_pipelines.media.clip import TimedFrame
from sana_like_pipelines.media.clip_read import at_rate

av = pytest.importorskip("av")


def grey(count, size=(32, 48)):
    """Frame k has brightness 8 * k, so that a frame tells its number."""
    return np.stack([np.full((*size, 3), 8 * place, np.uint8) for place in range(count)])


def numbers(clip):
    return [round(float(frame.mean()) / 8) for frame in clip]


def encode(path, clip, rate, *, codec="libx264", pixels="yuv420p", times=None, **options):
    """A clip as other programs write it; `times` in seconds for each frame."""
    turned = options.pop("rotation", 0)
    tags = options.pop("tags", {})
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = clip.shape[1:3]
        stream.pix_fmt = pixels
        stream.metadata.update(tags)
        if turned:
            stream.set_display_rotation(turned)
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for place, frame in enumerate(clip):
            kind = "rgba" if frame.shape[2] == 4 else "rgb24"
            picture = av.VideoFrame.from_ndarray(frame, format=kind)
            if times is None:
                picture.pts, picture.time_base = place, 1 / Fraction(rate)
            else:
                picture.pts, picture.time_base = round(times[place] * 1000), Fraction(1, 1000)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("rate", [8, Fraction(24000, 1001), 24, 30, 60])
@pytest.mark.parametrize(
    ("suffix", "codec"),
    [("webm", "libvpx-vp9"), ("mkv", "libx264"), ("mov", "libx264"), ("avi", "mpeg4")],
)
def test_other_containers_keep_count_and_rate(tmp_path, suffix, codec, rate):
    path = encode(tmp_path / f"a.{suffix}", grey(20), rate, codec=codec)
    back = read_clip(path)
    assert back.rate == rate
    assert numbers(back.frames) == list(range(20))


@pytest.mark.parametrize(
    ("source", "wanted", "expected"),
    [
        (24, 8, [0, 3, 6, 9, 12, 15, 18, 21]),
        (24, 24, list(range(24))),
        (8, 24, [place // 3 for place in range(24)]),
        (25, 24, None),
        (30, 8, [0, 3, 7, 11, 15, 18, 22, 26]),
        (24, Fraction(24000, 1001), None),
    ],
)
@pytest.mark.parametrize("suffix", ["mp4", "webm"])
def test_another_rate_keeps_the_speed(tmp_path, source, wanted, expected, suffix):
    codec = "libvpx-vp9" if suffix == "webm" else "libx264"
    path = encode(tmp_path / f"a.{suffix}", grey(source), source, codec=codec)  # one second
    got = numbers(read_clip(path, wanted).frames)
    if expected is None:
        shown = [place * source / float(wanted) for place in range(len(got))]
        expected = [min(int(time + 1e-6), source - 1) for time in shown]
    assert got == expected


def test_variable_rate_is_read_by_its_time_stamps(tmp_path):
    times = [0.0, 0.5, 0.625, 0.75, 2.0]
    path = encode(tmp_path / "a.mkv", grey(5), 8, times=times)
    got = numbers(stream_clip(path, 8, frames=17))
    assert got[:17] == [0, 0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]


def test_first_frame_counts_from_its_own_time(tmp_path):
    path = encode(tmp_path / "a.mkv", grey(4), 8, times=[5.0, 5.125, 5.25, 5.375])
    assert numbers(read_clip(path, 8).frames) == [0, 1, 2, 3]


@pytest.mark.parametrize("turned", [90, 180, -90])
def test_turned_clips_are_upright(tmp_path, turned):
    clip = np.zeros((5, 32, 48, 3), np.uint8)
    clip[:, :16, :16] = 250  # top left as it is stored
    path = encode(tmp_path / "a.mp4", clip, 24, rotation=turned)
    back = read_clip(path)
    upright = np.rot90(clip, turned // 90, (1, 2))
    assert back.frames.shape == upright.shape
    assert (probe_clip(path).height, probe_clip(path).width) == upright.shape[1:3]
    assert np.abs(back.frames.astype(int) - upright).mean() < 4


def test_narrow_pixels_are_made_square(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(4, 3)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(grey(1)[0], format="rgb24")))
        container.mux(stream.encode())
    assert read_clip(path).frames.shape == (1, 32, 64, 3)
    assert probe_clip(path).width == 64


@pytest.mark.parametrize("kind", ["vp9", "png", "webp"])
def test_transparency_lies_on_the_background(tmp_path, kind):
    clip = np.zeros((4, 32, 48, 4), np.uint8)
    clip[:, :, 24:] = (200, 0, 0, 255)
    if kind == "webp":
        first, *rest = [Image.fromarray(frame) for frame in clip]
        path = tmp_path / "a.webp"
        first.save(path, save_all=True, append_images=rest, duration=125, lossless=True)
    elif kind == "png":
        path = encode(tmp_path / "a.mov", clip, 8, codec="png", pixels="rgba")
    else:
        path = encode(
            tmp_path / "a.webm", clip, 8, codec="libvpx-vp9", pixels="yuva420p",
            tags={"alpha_mode": "1"},
        )  # fmt: skip
    frame = read_clip(path, 8, background=(0, 0, 255)).frames[0].astype(int)
    assert np.abs(frame[8, 8] - (0, 0, 255)).max() < 12
    assert np.abs(frame[8, 40] - (200, 0, 0)).max() < 12


def test_ten_bit_and_full_range_colours(tmp_path):
    clip = np.full((3, 32, 48, 3), (200, 60, 90), np.uint8)
    path = encode(tmp_path / "a.mkv", clip, 8, codec="ffv1", pixels="yuv420p10le")
    assert np.abs(read_clip(path).frames.mean((0, 1, 2)) - (200, 60, 90)).max() < 2


def test_animations_without_our_facts(tmp_path):
    for name in ("a.webp", "a.gif", "a.png"):
        first, *rest = [Image.fromarray(frame) for frame in grey(20)]
        first.save(tmp_path / name, save_all=True, append_images=rest, duration=50)
        back = read_clip(tmp_path / name)
        assert (back.rate, numbers(back.frames)) == (20, list(range(20))), name


def test_still_picture_is_a_clip_of_one_frame(tmp_path):
    Image.fromarray(grey(3)[2]).save(tmp_path / "a.png")
    assert numbers(read_clip(tmp_path / "a.png", 24, frames=1).frames) == [2]


def test_folder_in_the_order_of_numbers(tmp_path):
    for place, frame in enumerate(grey(12)):
        Image.fromarray(frame).save(tmp_path / f"shot{place}.png")
    assert numbers(read_clip(tmp_path, 24).frames) == list(range(12))
    with pytest.raises(ClipError, match="give a rate"):
        read_clip(tmp_path)
    Image.fromarray(grey(1, (8, 8))[0]).save(tmp_path / "shot12.png")
    with pytest.raises(ClipError, match="must have one size"):
        read_clip(tmp_path, 24)


def test_first_frames_only(tmp_path):
    path = write_clip(grey(30), tmp_path / "a.mp4", 24)
    assert numbers(read_clip(path, frames=5).frames) == [0, 1, 2, 3, 4]
    assert len(read_clip(path, frames=50).frames) == 30
    with pytest.raises(ClipError, match="1 or more"):
        read_clip(path, frames=0)


def test_content_decides_not_the_name(tmp_path):
    path = write_clip(grey(3), tmp_path / "a.mp4", 24)
    assert numbers(read_clip(path.rename(tmp_path / "a.gif")).frames) == [0, 1, 2]
    assert numbers(read_clip((tmp_path / "a.gif").read_bytes()).frames) == [0, 1, 2]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a clip" * 100,
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/a.ts\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b"\0\0\0\x18ftypisom\0\0\2\0isomiso2",
        b"\x1a\x45\xdf\xa3" + b"\xff" * 200,
        b"GIF89a" + b"\0" * 20,
        b"RIFF\xff\xff\xff\xffAVI LIST" + b"\xff" * 64,
    ],
)
def test_what_is_no_clip_is_refused_by_name(tmp_path, content):
    path = tmp_path / "broken.mp4"
    path.write_bytes(content)
    with pytest.raises(ClipError, match=r"broken\.mp4"):
        read_clip(path)


def test_missing_files_and_pipes(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        read_clip(tmp_path / "none.mp4")
    with pytest.raises(ClipError, match="holds no frames"):
        read_clip(tmp_path, 8)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("name", ["a.mp4", "a.webp"])
def test_cut_files(tmp_path, name, share):
    rng = np.random.default_rng(0)
    clip = rng.integers(0, 255, (20, 64, 64, 3), dtype=np.uint8)
    data = write_clip(clip, tmp_path / name, 24).read_bytes()
    try:
        back = read_clip(data[: int(share * len(data))])
    except ClipError:
        return
    assert 1 <= len(back.frames) <= 20


def test_million_frames_are_refused_at_once(tmp_path):
    path = write_clip(grey(3), tmp_path / "a.mp4", 24)
    data = bytearray(path.read_bytes())
    # The sample table says three samples, all of them one tick long; make it a hundred million.
    at = data.index(b"stts") + 12
    data[at : at + 4] = struct.pack(">I", 100_000_000)
    size = data.index(b"mdhd") + 20
    data[size : size + 4] = struct.pack(">I", 2**31 - 1)
    begin = time.process_time()
    with pytest.raises(ClipError, match="frames"):
        read_clip(bytes(data))
    assert time.process_time() - begin < 2


def test_long_clips_are_refused_as_they_come(tmp_path):
    path = encode(tmp_path / "a.mkv", grey(3), 8, times=[0.0, 1.0, 100_000.0])
    with pytest.raises(ClipError, match="at most 50"):
        list(stream_clip(path, 8, max_frames=50))
    first, *rest = [Image.fromarray(frame) for frame in grey(20)]
    first.save(tmp_path / "a.gif", save_all=True, append_images=rest, duration=50)
    with pytest.raises(ClipError, match="at most 10"):
        list(stream_clip(tmp_path / "a.gif", 20, max_frames=10))


def test_memory_is_bounded(tmp_path):
    path = write_clip(grey(30), tmp_path / "a.mp4", 24)
    with pytest.raises(ClipError, match="GiB"):
        read_clip(path, max_bytes=10 * 32 * 48 * 3)
    assert len(read_clip(path, frames=5, max_bytes=10 * 32 * 48 * 3).frames) == 5


def test_large_frames_are_refused_before_they_are_decoded(tmp_path):
    png = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")):
        checked = kind + body
        png += struct.pack(">I", len(body)) + checked + struct.pack(">I", zlib.crc32(checked))
    with pytest.raises(ClipError, match="2500000000"):
        read_clip(png, 8)
    path = write_clip(grey(2), tmp_path / "a.mp4", 24)
    with pytest.raises(ValueError, match="at most 1000"):
        read_clip(path, max_pixels=1000)


def test_at_rate_holds_every_frame_for_its_time():
    frames = [
        TimedFrame(np.array(place), Fraction(at), Fraction(1, 2))
        for place, at in enumerate([0, 1, Fraction(3, 2)])
    ]
    assert [int(pixels) for pixels in at_rate(frames, Fraction(2), Fraction(0))] == [0, 0, 1, 2]
    assert [int(pixels) for pixels in at_rate(frames, Fraction(1, 5), Fraction(0))] == [0]
    assert list(at_rate([], Fraction(2), Fraction(0))) == []


def test_foreign_files_carry_no_recipe(tmp_path):
    path = encode(tmp_path / "a.mp4", grey(2), 8)
    with pytest.raises(ValueError, match="no recipe"):
        read_recipe(path)
