from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sana_like import AutoencoderDC, SanaTransformer2DModel
from sana_like_train import latents as latents_module
from sana_like_train.cache import picture_array, square_rgba
from sana_like_train.components import load_text_encoder
from sana_like_train.config import Augment, TextToImageTask
from sana_like_train.data.records import load_records
from sana_like_train.latents import moved, pack_latents
from sana_like_train.reporting import sheet
from sana_like_train.sections import TimeSampling
from sana_like_train.tasks.base import Position, SampleOrder, derived_seed
from sana_like_train.tasks.flow_matching import sample_sigmas
from sana_like_train.text_features import PackedText, fit_text_input, pack_texts


def test_every_epoch_is_a_permutation_and_processes_share_it() -> None:
    order = SampleOrder(10, seed=1)
    drawn = [i for s in range(0, 20, 4) for i in order.indices(Position(0, 0, s), 4)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    shared = [
        index
        for start in range(0, 20, 4)
        for rank in range(2)
        for index in SampleOrder(10, seed=1).indices(Position(0, 0, start, rank, 2), 2)
    ]
    assert shared == drawn
    assert SampleOrder(10, seed=2).indices(Position(0, 0, 0), 10) != drawn[:10]


def test_derived_seeds_differ_by_every_part() -> None:
    seeds = {derived_seed(*parts) for parts in [(0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2)]}
    assert len(seeds) == 4
    assert derived_seed(0, "a", 1, 2) != derived_seed(0, "a", 12)


def test_pictures_are_decoded_once_and_equal_the_files(
    emoji_pack: Callable[..., Path], tmp_path: Path
) -> None:
    records = load_records(emoji_pack(3))
    first = picture_array(records, 32, tmp_path / "cache")
    assert first.dtype == np.uint8 and first.shape == (9, 32, 32, 4)
    for record, picture in zip(records, first, strict=True):
        assert np.array_equal(picture, np.asarray(record.open_image()))
    stamp = next((tmp_path / "cache" / "pictures").iterdir()).stat().st_mtime_ns
    again = picture_array(records, 32, tmp_path / "cache")
    assert np.array_equal(first, again)
    assert next((tmp_path / "cache" / "pictures").iterdir()).stat().st_mtime_ns == stamp
    assert picture_array(records, 16, tmp_path / "cache").shape == (9, 16, 16, 4)


def test_pictures_stay_in_memory_where_the_cache_cannot_be_written(
    emoji_pack: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    pictures = picture_array(load_records(emoji_pack(2)), 32, tmp_path / "file")
    assert pictures.shape == (6, 32, 32, 4)


def test_pictures_of_other_shapes_are_centred_on_nothing(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (64, 32), (255, 0, 0)).save(tmp_path / "wide.png")
    square = square_rgba(load_records(tmp_path)[0], 32)
    assert square[:8, :, 3].max() == 0 and square[24:, :, 3].max() == 0
    assert (square[8:24] == [255, 0, 0, 255]).all()


def test_latents_are_those_of_the_autoencoder_and_come_from_the_cache(
    emoji_pack: Callable[..., Path],
    tiny_autoencoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = load_records(emoji_pack(2))
    model = AutoencoderDC.from_pretrained(tiny_autoencoder)
    model.register_to_config(scaling_factor=2.0)
    sizes = [(32, 32), (32, 16), *[(32, 32)] * 4]

    def pack(variants: int, seed: int = 0) -> Any:
        augment = Augment(variants=variants)
        return pack_latents(records, sizes, model, augment, tmp_path, seed=seed, half=False)

    packed = pack(2)
    assert packed.shapes[:2] == [(4, 8, 8), (4, 8, 4)]
    with torch.no_grad():
        expected = model.encode(records[3].open_picture(None)[None]).latent[0] * 2.0
    assert torch.allclose(packed.get(3), expected, atol=2e-3)
    assert not torch.allclose(packed.get(3, 1), expected, atol=2e-2)
    assert not torch.allclose(packed.get(3, 1), packed.get(3, 2), atol=2e-2)
    assert torch.equal(pack(0).get(3), packed.get(3))
    assert not torch.equal(pack(2, seed=1).get(3, 1), packed.get(3, 1))
    with torch.no_grad():
        next(model.encoder.conv_out.parameters()).mul_(2)
    assert not torch.equal(pack(2).get(3), packed.get(3))  # other weights, other latents

    def forbidden(*_: Any) -> None:
        raise AssertionError("encoded again")

    monkeypatch.setattr(latents_module, "_encode", forbidden)
    assert not torch.equal(pack(2).get(3), packed.get(3))
    model.register_to_config(scaling_factor=3.0)
    with pytest.raises(AssertionError, match="encoded again"):
        pack(2)


def test_moved_pictures() -> None:
    picture = torch.ones(3, 16, 16)
    picture[:, 6:10, 6:10] = -1.0
    assert torch.allclose(moved(picture, 1.0, (0.0, 0.0)), picture, atol=1e-5)
    right = moved(picture, 1.0, (0.25, 0.0))  # a quarter of half the side: two pixels
    assert torch.allclose(right[:, :, 2:], picture[:, :, :-2], atol=1e-5)
    down = moved(picture, 1.0, (0.0, 0.25))
    assert torch.allclose(down[:, 2:], picture[:, :-2], atol=1e-5)
    larger = moved(picture, 1.5, (0.0, 0.0))
    assert (larger < 0).sum() > (picture < 0).sum()
    assert torch.allclose(larger[:, 0, 0], torch.ones(3))
    picture[:, 0, 0] = -1.0
    assert torch.allclose(moved(picture, 1.0, (0.0, 0.0), -1.0), picture.flip(2), atol=1e-5)


def test_packed_text_equals_the_encoder_and_pads_with_a_mask(
    tiny_text_encoder: Path, tmp_path: Path
) -> None:
    task = TextToImageTask(
        text_encoder=str(tiny_text_encoder),
        text_settings={
            "instruction": "a emoji of",
            "max_sequence_length": 12,
            "rms_normalize": True,
            "selection": "prompt",
        },
    )
    encoder = load_text_encoder(task, None, torch.device("cpu"))
    texts = ["thing 1 , 3d", "", "a thing", "thing 1 , 3d"]
    packed = pack_texts(texts, encoder, tmp_path)
    embeds, mask = packed.batch(["thing 1 , 3d", "", "a thing"])
    expected = encoder.encode(["thing 1 , 3d", "", "a thing"]).trimmed()
    assert torch.equal(mask, expected.mask)
    assert torch.allclose(embeds, expected.embeds.float(), atol=1e-2)
    assert (embeds[~mask] == 0).all()
    encoder.encode = None  # type: ignore[assignment]  # a second call reads the file
    again = pack_texts(texts, encoder, tmp_path)
    assert torch.equal(again.rows, packed.rows)


def test_noise_levels_follow_the_shifted_logit_normal() -> None:
    generator = torch.Generator().manual_seed(0)
    plain = sample_sigmas(TimeSampling(), 20_000, generator)
    assert plain.min() > 0 and plain.max() < 1
    assert plain.median().item() == pytest.approx(0.5, abs=0.01)
    inner = (plain > torch.sigmoid(torch.tensor(-1.0))) & (plain < torch.sigmoid(torch.tensor(1.0)))
    assert inner.float().mean().item() == pytest.approx(0.6827, abs=0.01)
    batches = torch.stack([sample_sigmas(TimeSampling(), 4, generator) for _ in range(5000)])
    quartiles = torch.sigmoid(torch.tensor([-0.67449, 0.0, 0.67449]))
    assert (torch.bucketize(batches, quartiles).sort().values == torch.arange(4)).all()
    assert batches[:, 0].median().item() == pytest.approx(0.5, abs=0.03)
    shifted = sample_sigmas(TimeSampling(shift=3.0), 20_000, generator)
    assert shifted.median().item() == pytest.approx(0.75, abs=0.01)


def test_a_sheet_fills_its_last_row_with_white() -> None:
    out = sheet(torch.zeros(3, 3, 2, 2), columns=2)
    assert out.shape == (3, 4, 4)
    assert out[:, :2].abs().sum() == 0 and (out[:, 2:, 2:] == 1).all()


def test_text_input_starts_on_what_differs_between_texts() -> None:
    """A constant channel and the scale of the others must not reach the first activation."""
    torch.manual_seed(0)
    rows = torch.randn(400, 24) * torch.linspace(0.2, 3, 24)
    rows[:, 5] = 15.0 + 0.2 * torch.randn(400)
    text = PackedText({}, rows.bfloat16(), torch.tensor([0]))
    model = SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=24,
        sample_size=4,
    )
    before = model.caption_projection.linear_1(rows)
    fit_text_input(model, text)
    after = model.caption_projection.linear_1(text.rows.float())
    assert before.mean(0).abs().max() > 0.1  # the constant channel dominated
    assert after.mean(0).abs().max() < 1e-2
    assert 0.5 < after.std(0).mean() < 2
    assert (model.caption_norm.weight == 1).all()
