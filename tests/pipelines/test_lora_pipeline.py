"""Adapters on a pipeline: those that fit, those that do not, and the way back."""

from __future__ import annotations

import diffusers
import pytest
import torch
from safetensors.torch import save_file

from sana_like.weights import WeightsError
from sana_like_pipelines import SanaSprintPipeline

LAYERS = {
    "attn1.to_q": (32, 32),
    "attn2.to_k": (32, 32),
    "attn2.to_out.0": (32, 32),
    "ff.conv_inverted": (160, 32),
    "ff.conv_point": (32, 80),
}


def adapter(prefix="transformer.", rank=2, seed=0, blocks=3):
    """Keys and shapes as diffusers writes them; former convolutions keep their two last sides."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for block in range(blocks):
        for layer, (rows, columns) in LAYERS.items():
            sides = (1, 1) if layer.startswith("ff") else ()
            name = f"{prefix}transformer_blocks.{block}.{layer}"
            down = torch.randn(rank, columns, *sides, generator=generator) * 0.3
            tensors[f"{name}.lora_A.weight"] = down
            tensors[f"{name}.lora_B.weight"] = torch.randn(rows, rank, *sides, generator=generator)
    return tensors


def latents_of(pipe, **arguments):
    return pipe("a cat", output_type="latent", generator=1, **arguments).images


def weights_of(pipe):
    return {key: value.clone() for key, value in pipe.transformer.state_dict().items()}


@pytest.fixture
def base(sana, quick):
    return latents_of(sana, **quick)


def test_matched_layers_are_reported_and_act(sana, quick, base, tmp_path):
    save_file(adapter(), tmp_path / "adapter.safetensors")
    report = sana.load_lora_weights(tmp_path / "adapter.safetensors")
    assert len(report.matched) == 3 * len(LAYERS) and report.unmatched == ()
    assert report.adapter_name == "default_0"
    assert (latents_of(sana, **quick) - base).abs().max() > 0.05
    assert sana("a", **quick).recipe[0]["adapters"] == {"default_0": 1.0}


def test_agrees_with_diffusers(saved, sana, quick):
    from sana_like import FlowDPMSolverScheduler

    sana.scheduler = FlowDPMSolverScheduler.from_config(
        sana.scheduler.config, truncate_timesteps=True
    )
    start = torch.randn(1, 4, 16, 16)
    sana.load_lora_weights(adapter())
    ours = sana("a cat", latents=start, output_type="latent", **quick).images
    stock = diffusers.SanaPipeline.from_pretrained(saved("sana").folder)
    stock.set_progress_bar_config(disable=True)
    stock.load_lora_weights(adapter())
    theirs = stock(
        "a cat", latents=start, output_type="latent", use_resolution_binning=False, **quick
    ).images
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)


def test_no_match_is_an_error_with_counts(sana, quick, base):
    with pytest.raises(WeightsError, match="0 of 15"):
        sana.load_lora_weights(adapter(prefix="unet.down."))
    assert torch.equal(latents_of(sana, **quick), base)


def test_partial_match(sana, quick, base):
    half = adapter(blocks=2) | {
        key.replace("transformer_blocks.2", "layers.2"): value
        for key, value in adapter().items()
        if ".2." in key
    }
    with pytest.raises(WeightsError, match="10 of 15"):
        sana.load_lora_weights(half)
    assert torch.equal(latents_of(sana, **quick), base)
    report = sana.load_lora_weights(half, strict=False)
    assert len(report.matched) == 10 and len(report.unmatched) == 5


def test_wrong_rank_names_both_shapes(sana, quick, base):
    broken = adapter()
    key = "transformer.transformer_blocks.0.attn1.to_q.lora_B.weight"
    broken[key] = torch.randn(32, 5)
    with pytest.raises(WeightsError, match=r"2.*5|5.*2"):
        sana.load_lora_weights(broken)
    assert torch.equal(latents_of(sana, **quick), base)


@pytest.mark.parametrize("scale", [0, 0.0])
def test_scale_zero_is_the_base_bit_for_bit(sana, quick, base, scale):
    sana.load_lora_weights(adapter())
    full = latents_of(sana, **quick)
    assert torch.equal(latents_of(sana, attention_kwargs={"scale": scale}, **quick), base)
    assert torch.equal(latents_of(sana, **quick), full), "the scale of one call stayed"


def test_scale_of_a_call_reaches_the_text(sana, quick):
    """Adapters on the keys of the text act when the text is projected, before the steps."""
    only_text = {key: value for key, value in adapter().items() if "attn2.to_k" in key}
    sana.load_lora_weights(only_text)
    full = latents_of(sana, **quick)
    half = latents_of(sana, attention_kwargs={"scale": 0.5}, **quick)
    sana.set_adapters("default_0", 0.5)
    torch.testing.assert_close(latents_of(sana, **quick), half, atol=1e-4, rtol=0)
    assert (full - half).abs().max() > 1e-3


def test_unload_is_the_base_bit_for_bit(sana, quick, base):
    before = weights_of(sana)
    sana.load_lora_weights(adapter())
    sana.unload_lora_weights()
    after = weights_of(sana)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(latents_of(sana, **quick), base)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fuse_and_unfuse(sana, quick, dtype):
    sana.to(dtype)
    base = latents_of(sana, **quick)
    sana.load_lora_weights(adapter())
    loose = latents_of(sana, **quick)
    sana.fuse_lora()
    tight = latents_of(sana, **quick)
    limit = 1e-4 if dtype == torch.float32 else 0.1
    assert (tight - loose).abs().mean() < limit * loose.abs().mean()
    sana.unfuse_lora()
    assert torch.equal(latents_of(sana, **quick), loose)
    sana.unload_lora_weights()
    assert torch.equal(latents_of(sana, **quick), base)


def test_several_adapters(sana, quick, base):
    sana.load_lora_weights(adapter(seed=1), "one")
    first = latents_of(sana, **quick)
    sana.load_lora_weights(adapter(seed=2), "two")
    assert sana.get_list_adapters() == {"transformer": ["one", "two"]}
    assert sana.get_active_adapters() == ["one", "two"]
    sana.set_adapters("one")
    assert sana.get_active_adapters() == ["one"]
    torch.testing.assert_close(latents_of(sana, **quick), first, atol=1e-4, rtol=0)
    sana.set_adapters(["one", "two"], [0.0, 0.0])
    assert torch.equal(latents_of(sana, **quick), base)
    sana.delete_adapters("one")
    assert sana.get_list_adapters() == {"transformer": ["two"]}
    with pytest.raises(ValueError, match="2 weights"):
        sana.set_adapters("two", [1.0, 2.0])
    with pytest.raises(WeightsError, match="three"):
        sana.set_adapters("three")


def test_saved_adapter_loads_again_here_and_there(saved, sana, quick, tmp_path):
    sana.load_lora_weights(adapter())
    expected = latents_of(sana, **quick)
    sana.save_lora_weights(tmp_path)
    sana.unload_lora_weights()
    sana.load_lora_weights(tmp_path)
    torch.testing.assert_close(latents_of(sana, **quick), expected, atol=1e-5, rtol=0)
    stock = diffusers.SanaPipeline.from_pretrained(saved("sana").folder)
    stock.load_lora_weights(str(tmp_path), weight_name="pytorch_lora_weights.safetensors")
    assert stock.get_list_adapters()


def test_on_every_pipeline(sana, sprint, controlnet):
    for pipe in (sana, sprint, controlnet):
        assert pipe.load_lora_weights(adapter()).matched
        pipe.unload_lora_weights()
    assert isinstance(sprint, SanaSprintPipeline)
