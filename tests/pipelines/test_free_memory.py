"""What is chosen by the free memory: passes of guidance, tiles of decoding."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from sana_like import AutoencoderDC
from sana_like.autoencoders.presets import autoencoder_preset
from sana_like_pipelines import decode, free_memory, memory
from sana_like_pipelines.guidance import Guidance

CPU = torch.device("cpu")


@pytest.fixture
def left(monkeypatch):
    """`left(bytes)`: how much memory the machine seems to have left."""

    def set_free(size):
        monkeypatch.setattr(free_memory, "free_bytes", lambda device: size)

    return set_free


def test_this_machine_has_some_memory():
    free = free_memory.free_bytes(CPU)
    assert free is None or 2**20 < free < 2**50


def test_a_limited_group_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(free_memory, "_GROUP", tmp_path)
    monkeypatch.setattr(free_memory, "_MEMINFO", tmp_path / "meminfo")
    assert free_memory.free_bytes(CPU) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   4000 kB\n")
    assert free_memory.free_bytes(CPU) == 4_096_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    assert free_memory.free_bytes(CPU) == 4_096_000
    (tmp_path / "memory.max").write_text("4000000\n")
    assert free_memory.free_bytes(CPU) == 1_000_000
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 250000\n")
    assert free_memory.free_bytes(CPU) == 1_250_000


def test_unknown_memory_fits_everything(left):
    left(None)
    assert free_memory.fits(10**18, CPU)
    left(1000)
    assert free_memory.fits(750, CPU) and not free_memory.fits(751, CPU)


@pytest.mark.parametrize(("scale", "pag", "branches"), [(1, 0, 1), (4, 0, 2), (4, 1, 3)])
def test_passes_by_memory(sana, quick, left, caplog, scale, pag, branches):
    arguments = quick | {"generator": 1, "guidance_scale": scale, "pag_scale": pag}
    caplog.set_level(logging.INFO)

    def call(**more):
        output = sana("a red house", output_type="latent", **arguments | more)
        return output.images, output.recipe[0]["settings"]["guidance_passes"]

    left(2**40)
    together, passes = call()
    assert passes == "batched" and "one at a time" not in caplog.text
    one, all_of_them = (
        sana.estimate(32, 32, guidance_scale=scale, pag_scale=pag, guidance_passes=passes)
        .activations["denoise"]
        for passes in ("sequential", "batched")
    )  # fmt: skip
    assert all_of_them == branches * one
    left(all_of_them)
    apart, passes = call()
    assert passes == ("sequential" if branches > 1 else "batched")
    assert ("one at a time" in caplog.text) == (branches > 1)
    torch.testing.assert_close(apart, together, atol=1e-4, rtol=0)
    assert call(guidance_passes="batched")[1] == "batched", "what is asked for is done"
    estimate = sana.estimate(32, 32, guidance_scale=scale, pag_scale=pag)
    assert estimate.activations["denoise"] == one
    with pytest.raises(ValueError, match="legal: auto, batched, sequential"):
        call(guidance_passes="both")


def test_one_prediction_is_equal_to_1e_5(sana):
    """Batched and sequential, prompts of unequal length, so that padding is masked in one alone."""
    transformer = sana.transformer
    texts = {
        "prompt": transformer.prepare_text(torch.randn(2, 9, 16)),
        "negative": transformer.prepare_text(torch.randn(2, 2, 16)),
    }
    latents = torch.randn(2, 4, 16, 16)

    def network(rows, branches):
        context = type(texts["prompt"]).cat([texts[branch] for branch in branches])
        return transformer(rows, context, torch.tensor(500.0)).sample

    with torch.no_grad():
        together, apart = (
            Guidance(scale=4.5, batched=batched).predict(network, latents, step=0, steps=1, time=0)
            for batched in (True, False)
        )
    error = (together - apart).norm() / apart.norm()
    assert error <= 1e-5


def test_large_pictures_are_decoded_in_tiles_by_themselves(sana, quick, left, caplog):
    caplog.set_level(logging.INFO)
    sana.vae.tile_sample_min_height = sana.vae.tile_sample_min_width = 512
    arguments = quick | {"height": 544, "width": 320, "num_inference_steps": 1, "generator": 1}
    arguments |= {"output_type": "np", "num_images_per_prompt": 2}
    left(2**40)
    whole = sana("a", **arguments)
    assert "decoded_in_tiles" not in whole.recipe[0]
    assert decode.plan_tiles(sana.vae, 544, 320, 2, CPU) is None
    assert "tiles" not in caplog.text
    full = memory.decoder_bytes(sana.vae, 544, 320, 2)
    left(int(full / 0.75) - 1)
    assert decode.plan_tiles(sana.vae, 544, 320, 2, CPU) == decode.Tiles(512, 320)
    left(1)
    tiled = sana("a", **arguments)
    assert tiled.recipe[0]["decoded_in_tiles"] == [256, 256]
    assert "in tiles of 256x256 px" in caplog.text
    np.testing.assert_allclose(tiled.images, whole.images, atol=1e-4)
    assert not sana.vae.use_tiling and not sana.vae.use_slicing
    assert sana.estimate(544, 320, 2).activations["decode"] < full
    sana.vae.enable_tiling()
    assert decode.plan_tiles(sana.vae, 544, 320, 2, CPU) is None, "the user's own tiles stand"


def test_4096_px_do_not_fit_16_gib_and_are_tiled(left):
    """The published autoencoder, by its configuration alone."""
    with torch.device("meta"):
        vae = AutoencoderDC(**autoencoder_preset("dc-ae-f32c32-sana-1.1").config)
    vae.to(torch.bfloat16)
    left(16 * 2**30)
    tiles = decode.plan_tiles(vae, 4096, 4096, 1, torch.device("meta"))
    assert tiles is not None and max(tiles.height, tiles.width) <= 1024
    assert decode.plan_tiles(vae, 1024, 1024, 1, torch.device("meta")) is None
