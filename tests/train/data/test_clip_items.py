"""Clips of a run: drawn motions, real clips and pictures, their captions, order and latents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sana_like import AutoencoderDC
from sana_like.autoencoders.codec import video_codec
from sana_like_pipelines.media import write_clip
from sana_like_train import clip_latents
from sana_like_train.clip_latents import pack_clips
from sana_like_train.config import ConfigError, DataConfig
from sana_like_train.data.captions import Caption
from sana_like_train.data.clip_items import drawn_item, real_item, some_captions, still_item
from sana_like_train.data.clips import load_clips
from sana_like_train.data.motion_clips import motion_clip
from sana_like_train.data.records import load_records
from sana_like_train.tasks.base import Position
from sana_like_train.tasks.clip_selection import (
    MixedOrder,
    drawn_items,
    measured_items,
    select_clips,
    with_captions,
)
from sana_like_train.video_sections import ClipData, FewStepTask


@pytest.fixture
def clips_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "clips"
    folder.mkdir()
    frames = np.stack([np.full((16, 16, 3), 20 * place, np.uint8) for place in range(6)])
    write_clip(frames, folder / "grey.gif", 8)
    (folder / "grey.txt").write_text("a grey square")
    return folder


def test_drawn_clips_are_those_of_the_loader_from_any_moment_on(
    emoji_pack: Callable[..., Path],
) -> None:
    record = load_records(emoji_pack(1))[0]
    item = drawn_item(record, seed=3, epoch=2, motions=["moves left", "grows"])
    whole = motion_clip(record, seed=3, epoch=2, motions=["moves left", "grows"], side=32)
    assert torch.equal(item.open(25, 8, 32), whole.frames)
    assert torch.equal(item.open(4, 8, 32, first=6), whole.frames[6:10])
    assert item.captions == whole.captions
    other = drawn_item(record, seed=3, epoch=3, motions=["moves left", "grows"])
    assert other.identity != item.identity and other.key != item.key


def test_real_clips_go_round_and_pictures_stand(
    clips_folder: Path, emoji_pack: Callable[..., Path]
) -> None:
    (record,) = load_clips(clips_folder)
    item = real_item(record)
    assert item.captions == record.captions  # a folder's own words
    means = item.open(8, 8, 16, first=4).float().mean((1, 2, 3))
    assert torch.allclose(means, torch.tensor([80.0, 100, 0, 20, 40, 60, 80, 100]), atol=2)
    still = still_item(load_records(emoji_pack(1))[0])
    frames = still.open(3, 8, 32)
    assert frames.shape == (3, 3, 32, 32) and torch.equal(frames[0], frames[2])
    with Image.open(clips_folder / "grey.gif") as opened:
        opened.convert("RGB").save(clips_folder / "one.png")
    assert still_item(load_records(clips_folder)[0]).open(1, 8, 8).shape == (1, 3, 8, 8)


def test_few_captions_keep_the_main_one_and_prefer_heavy_ones() -> None:
    captions = [Caption("main", 0.1), Caption("heavy", 5.0), Caption("light", 0.01)]
    chosen = [some_captions(captions, 2, str(n)) for n in range(200)]
    assert all(one[0] is captions[0] and len(one) == 2 for one in chosen)
    assert sum(one[1].text == "heavy" for one in chosen) > 190
    assert some_captions(captions, 2, "5") == chosen[5]
    assert some_captions(captions, 3, "x") == tuple(captions)


def test_both_kinds_are_drawn_by_their_share() -> None:
    order = MixedOrder(50, 5, 0.75, seed=0)
    rng = np.random.default_rng(0)
    drawn = [pair for step in range(100)
             for pair in order.indices(Position(step, step, 8 * step), 8, rng)]  # fmt: skip
    share = sum(kind == 0 for kind, _ in drawn) / len(drawn)
    assert share == pytest.approx(0.75, abs=0.05)
    assert {index for kind, index in drawn if kind == 0} == set(range(50))
    only = MixedOrder(0, 5, 0.75, seed=0).indices(Position(0, 0, 0), 8, rng)
    assert all(kind == 1 for kind, _ in only)


def test_held_out_concepts_are_not_drawn(
    emoji_pack: Callable[..., Path], clips_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OneHeldOut:
        def records(self, records: Any, part: str, *, selected: bool = True) -> list[Any]:
            held = {"held_out": True, "train": False}
            return [r for r in records if held.get(part) is (r.concept == "1f000")]

    monkeypatch.setattr("sana_like_train.tasks.selection.load_split", lambda _: OneHeldOut())
    monkeypatch.setattr("sana_like_train.tasks.clip_selection.load_split", lambda _: OneHeldOut())
    config = DataConfig(source=str(emoji_pack(3)), clips=str(clips_folder), split="emoji")
    clips = ClipData(drawn=2)
    records = select_clips(config, clips)
    items = drawn_items(records.pictures.train, clips, 0)
    assert len(items) == 2 * 6 and len({item.key for item in items}) == 12
    measured = measured_items(records, clips, 4)
    assert all("1f000" in item.key for item in measured["held_out"])
    assert not any("1f000" in item.key for item in [*items, *measured["train"]])
    assert any(item.plan is None for item in measured["train"])
    drawn = {item.identity for item in items}
    assert not drawn & {item.identity for item in measured["train"]}
    (clips_folder / "grey.txt").unlink()
    silent = [real_item(record) for record in load_clips(clips_folder)]
    with pytest.raises(ConfigError, match="1 clips have no caption, first 'grey:clip'"):
        with_captions(silent, 2)


def test_latents_of_clips_are_kept_file_by_file(
    emoji_pack: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    image = AutoencoderDC(
        latent_channels=4,
        encoder_block_types="GLUMBConv",
        decoder_block_types="GLUMBConv",
        encoder_block_out_channels=(8, 16),
        decoder_block_out_channels=(8, 16),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), ()),
        decoder_qkv_multiscales=((), ()),
        scaling_factor=2.0,
    ).eval()
    codec = video_codec(image)
    monkeypatch.setattr(clip_latents, "_CLIPS_A_FILE", 2)
    items = [drawn_item(r, seed=0, epoch=0) for r in load_records(emoji_pack(2))[:5]]
    length = {"frames": 3, "rate": 8, "side": 16, "half": False}
    packed = pack_clips(items, codec, tmp_path, **length)
    assert packed.shapes == [(4, 3, 8, 8)] * 5
    clip = items[4].open(3, 8, 16).float().transpose(0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        assert torch.allclose(packed.get(4), codec.encode_video(clip)[0], atol=1e-2)
    files = sorted((tmp_path / "latents").glob("*.safetensors"))
    assert len(files) == 3
    encoded = []
    encode = clip_latents._encode

    def counted(some: Any, *rest: Any) -> Any:
        encoded.extend(some)
        return encode(some, *rest)

    monkeypatch.setattr(clip_latents, "_encode", counted)
    next(iter(files)).unlink()  # as after an interruption
    again = pack_clips(items, codec, tmp_path, **length)
    assert torch.equal(again.flat, packed.flat) and 1 <= len(encoded) <= 2
    encoded.clear()
    pack_clips(items, codec, tmp_path, **{**length, "frames": 2})
    assert len(encoded) == 5


def test_defaults_are_those_of_the_modules_that_recipes_do_not_load() -> None:
    from sana_like.schedulers.chunked import PUBLISHED_LEVELS
    from sana_like_train.data.motion import CLIP_FRAMES, CLIP_RATE

    assert (ClipData().frames, ClipData().rate) == (CLIP_FRAMES, CLIP_RATE)
    assert FewStepTask().levels == PUBLISHED_LEVELS
