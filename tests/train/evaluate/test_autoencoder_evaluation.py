from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sana_like import AutoencoderDC
from sana_like_train.data.records import load_records
from sana_like_train.data.split import make_split
from sana_like_train.evaluate.autoencoder import (
    evaluate_autoencoder,
    random_colour,
    reconstruct,
)
from sana_like_train.evaluate.quality import psnr


@pytest.fixture
def autoencoder() -> AutoencoderDC:
    return AutoencoderDC(
        latent_channels=4,
        attention_head_dim=8,
        encoder_block_types=["ResBlock", "EfficientViTBlock"],
        decoder_block_types=["ResBlock", "EfficientViTBlock"],
        encoder_block_out_channels=(8, 16),
        decoder_block_out_channels=(8, 16),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), ()),
        decoder_qkv_multiscales=((), ()),
    ).eval()


def test_report(
    autoencoder: AutoencoderDC, emoji_pack: Callable[..., Path], tmp_path: Path
) -> None:
    pack = emoji_pack(21)
    records = load_records(pack)
    split = make_split(records, seed=0, styles=("3d", "flat"))
    (tmp_path / "split.json").write_text(split.to_json())
    autoencoder.save_pretrained(tmp_path / "model")
    report = evaluate_autoencoder(
        tmp_path / "model", pack, tmp_path / "out", split=tmp_path / "split.json"
    )
    assert json.loads((tmp_path / "out" / "autoencoder.json").read_text()) == report
    assert (tmp_path / "out" / "autoencoder.png").is_file()
    # Two concepts are held out, in three styles; the product has two of them.
    counts = {name: scores["count"] for name, scores in report["white"].items()}
    assert counts == {"all": 6, "selected": 4, "3d": 2, "flat": 2, "noto": 2}
    assert report["reached"] == {"white": False, "random_colour": False}  # random weights
    held_out = split.records(records, "held_out", selected=False)
    pictures = torch.stack([record.open_picture() for record in held_out])
    expected = psnr(reconstruct(autoencoder, pictures), pictures).mean().item()
    assert report["white"]["all"]["psnr"] == pytest.approx(expected, abs=0.01)
    coloured = torch.stack([r.open_picture(random_colour(r.key)) for r in held_out])
    expected = psnr(reconstruct(autoencoder, coloured), coloured).mean().item()
    assert report["random_colour"]["all"]["psnr"] == pytest.approx(expected, abs=0.01)
    styles = [report["white"][style]["psnr"] for style in ("3d", "flat", "noto")]
    assert sum(styles) / 3 == pytest.approx(report["white"]["all"]["psnr"], abs=0.01)


def test_a_pack_without_held_out_concepts_is_refused(
    autoencoder: AutoencoderDC, emoji_pack: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="held-out"):
        evaluate_autoencoder("emoji-ae", emoji_pack(2), tmp_path / "out")


def test_random_colours_differ_and_stay() -> None:
    colours = {random_colour(f"picture {n}") for n in range(50)}
    assert len(colours) == 50
    assert all(0 <= channel <= 1 for colour in colours for channel in colour)
    assert random_colour("x") == random_colour("x")
