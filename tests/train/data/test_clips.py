"""Clips of tars and folders as records, at any rate and size."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from sana_like_pipelines.media import write_clip
from sana_like_train.data import emoji_clips
from sana_like_train.data.captions import Caption
from sana_like_train.data.clips import animated_captions, load_clips, open_clip, unit_range
from sana_like_train.data.emoji_clips import build_clips_pack, clip_codes, encode_clip


def grey(count, size=(16, 24)):
    return np.stack([np.full((*size, 3), 8 * place, np.uint8) for place in range(count)])


@pytest.fixture
def folder(tmp_path):
    write_clip(grey(24), tmp_path / "walk.mp4", 24)
    (tmp_path / "walk.txt").write_text("a walk", encoding="utf-8")
    Image.new("RGB", (8, 8)).save(tmp_path / "poster.png")
    return tmp_path


def test_folder_of_clips(folder):
    (record,) = load_clips(folder)
    assert (record.key, record.captions[0].text) == ("walk", "a walk")
    clip = open_clip(record, frames=4, rate=8)
    assert clip.shape == (4, 3, 16, 24) and clip.dtype == torch.uint8
    assert [round(float(frame.float().mean()) / 8) for frame in clip] == [0, 3, 6, 9]


def test_size_covers_and_cuts(folder):
    (record,) = load_clips(folder)
    assert open_clip(record, frames=2, rate=8, size=(32, 32)).shape == (2, 3, 32, 32)


def test_too_short_clips_repeat_or_are_refused(folder):
    (record,) = load_clips(folder)
    with pytest.raises(ValueError, match="'walk' has 8 frames at 8 a second, 20 are"):
        open_clip(record, frames=20, rate=8)
    looped = open_clip(record, frames=20, rate=8, loop=True)
    assert torch.equal(looped[8:16], looped[:8])


def test_unreadable_clip_is_named(tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"\0" * 64)
    with pytest.raises(ValueError, match="'bad'"):
        open_clip(load_clips(tmp_path)[0], frames=1, rate=8)


def test_loops_are_encoded_whole_and_closed(tmp_path):
    pictures = [Image.fromarray(frame).convert("RGBA") for frame in grey(30)]
    pictures[0].save(
        tmp_path / "a.webp", save_all=True, append_images=pictures[1:], duration=100, lossless=True
    )
    data = encode_clip((tmp_path / "a.webp").read_bytes())
    (tmp_path / "b.webp").write_bytes(data)
    clip = open_clip(load_clips(tmp_path)[1], frames=25, rate=8).float().mean((1, 2, 3)) / 8
    expected = [int(30 * place / 24) for place in range(24)]
    assert torch.allclose(clip, torch.tensor([*expected, 0.0]), atol=0.4)


def test_committed_list_of_animated_emoji():
    assert len(clip_codes()) == 693
    assert "1f300" in clip_codes()


def test_captions_and_range():
    assert animated_captions((Caption("cyclone, 3d", 0.5),)) == (
        Caption("cyclone, 3d, animated", 0.5),
    )
    assert unit_range(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1.0, 1.0]


def animation(count):
    frames = [Image.fromarray(frame).convert("RGBA") for frame in grey(count)]
    stream = io.BytesIO()
    frames[0].save(stream, "WEBP", save_all=True, append_images=frames[1:], duration=100)
    return stream.getvalue()


def test_pack_of_the_committed_animations(tmp_path, monkeypatch):
    files = {
        "1f300.webp": animation(30),
        "1f302-fe0f.webp": animation(5),
        "1f308.webp": animation(1),  # has one frame
        "ffff.webp": animation(5),  # is not on the list
    }
    path = tmp_path / "all.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"package/assets/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    empty = tmp_path / "none.tgz"
    tarfile.open(empty, "w:gz").close()
    first, *others = emoji_clips.ANIMATIONS
    archives = {
        first.name: path,
        **{package.name: empty for package in others},
        emoji_clips.EMOJIBASE.name: empty,
    }
    words = {"en": {"label": "cyclone", "tags": []}, "group": "travel-places", "subgroup": "sky"}
    concepts = {code: words for code in ("1f300", "1f302", "1f308", "ffff")}
    monkeypatch.setattr(emoji_clips, "fetch_packages", lambda *_: archives)
    monkeypatch.setattr(emoji_clips, "read_concepts", lambda _: concepts)
    told = []
    pack = build_clips_pack(
        tmp_path / "pack.tar", workers=1, progress=lambda *numbers: told.append(numbers)
    )
    records = load_clips(pack)
    assert [record.key for record in records] == ["1f300_3d", "1f302_3d"]
    assert told[-1][0] == 2
    assert records[0].captions[0].text == "cyclone, 3d"
    assert open_clip(records[0], frames=25, rate=8).shape[0] == 25
    with tarfile.open(pack) as tar:
        facts = json.load(tar.extractfile("1f300_3d.json"))
    assert (facts["frames"], facts["fps"], facts["style"]) == (25, 8, "3d")
