"""The report on an autoencoder of clips, and its sheet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("cv2")

from sana_like import AutoencoderDCVideo
from sana_like_train.card_scores import score_lines
from sana_like_train.data.clip_items import drawn_item
from sana_like_train.data.clips import unit_range
from sana_like_train.data.records import load_records
from sana_like_train.data.split import make_split
from sana_like_train.evaluate.quality import psnr
from sana_like_train.evaluate.video_autoencoder import evaluate_video_autoencoder


def test_report(emoji_pack: Callable[..., Path], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoencoderDCVideo(
        latent_channels=4,
        encoder_block_types="GLUMBConv",
        decoder_block_types="GLUMBConv",
        encoder_block_out_channels=(8, 16),
        decoder_block_out_channels=(8, 16),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), ()),
        decoder_qkv_multiscales=((), ()),
        encoder_temporal_layers=(0, 1),
        decoder_temporal_layers=(0, 1),
        temporal_stages=(),
    ).eval()
    model.save_pretrained(tmp_path / "model")
    pack = emoji_pack(21)
    records = load_records(pack)
    split = make_split(records, seed=0, styles=("3d", "flat"))
    (tmp_path / "split.json").write_text(split.to_json())
    out = tmp_path / "out"
    report = evaluate_video_autoencoder(
        tmp_path / "model", pack, out, split=tmp_path / "split.json", frames=5, side=32
    )
    assert json.loads((out / "video-autoencoder.json").read_text()) == report
    assert (out / "video-autoencoder.png").is_file()
    held_out = split.records(records, "held_out", selected=True)
    assert report["count"] == len(held_out) == 4
    first = []
    for record in held_out:
        frames = unit_range(drawn_item(record, seed=0, epoch=0).open(5, 8, 32))
        with torch.no_grad():
            rebuilt = model(frames.transpose(0, 1)[None]).sample[0].transpose(0, 1).clamp(-1, 1)
        first.append(psnr(rebuilt, frames)[0].item())
    assert report["frames"]["first"]["psnr"] == pytest.approx(sum(first) / 4, abs=0.01)
    assert report["frames"]["first"]["least_psnr"] == pytest.approx(min(first), abs=0.01)
    assert report["reached"]["first_frame"] == (min(first) >= 24)
    text = "\n".join(score_lines(report))
    for part in ("evaluate video-autoencoder", "first frames", "motion", "first_frame: no"):
        assert part in text
