"""One adapter file means the same thing to diffusers' transformer and to this one."""

from __future__ import annotations

from pathlib import Path

import diffusers
import pytest
import torch

from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.weights.lora import load_lora, save_lora, set_scale, unload_lora

CONFIG = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_layers": 2,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 8,
    "cross_attention_dim": 16,
    "caption_channels": 8,
    "sample_size": 4,
}
INPUTS = {
    "hidden_states": torch.linspace(-1, 1, 64).view(1, 4, 4, 4),
    "encoder_hidden_states": torch.linspace(-1, 1, 40).view(1, 5, 8),
    "timestep": torch.tensor([500.0]),
}
TARGETS = ("attn1.to_q", "attn1.to_out.0", "attn2.to_k", "ff.conv_inverted", "ff.conv_point")


@pytest.fixture
def models(tmp_path: Path) -> tuple[SanaTransformer2DModel, diffusers.SanaTransformer2DModel]:
    """The same weights in both classes, by way of a folder."""
    ours = SanaTransformer2DModel(**CONFIG).eval()
    ours.save_pretrained(tmp_path / "model")
    theirs = diffusers.SanaTransformer2DModel.from_pretrained(tmp_path / "model")
    return ours, theirs.eval()


def outputs(*models: torch.nn.Module) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(**INPUTS).sample for model in models]


def random_adapter(ours: torch.nn.Module) -> dict[str, torch.Tensor]:
    tensors = {}
    for name in (f"transformer_blocks.{i}.{part}" for i in range(2) for part in TARGETS):
        weight = ours.get_submodule(name).weight
        tail = (1, 1) if ".conv_" in name else ()
        tensors[f"transformer.{name}.lora_A.weight"] = 0.3 * torch.randn(3, weight.shape[1], *tail)
        tensors[f"transformer.{name}.lora_B.weight"] = 0.3 * torch.randn(weight.shape[0], 3, *tail)
    return tensors


def test_an_adapter_acts_alike_in_both(models, tmp_path: Path) -> None:
    ours, theirs = models
    base, _ = outputs(ours, theirs)
    tensors = random_adapter(ours)
    load_lora(
        ours, {**tensors, "transformer.transformer_blocks.0.ff.conv_point.alpha": torch.tensor(9.0)}
    )
    save_lora(ours, tmp_path)
    theirs.load_lora_adapter(str(tmp_path), prefix="transformer", use_safetensors=True)
    mine, stock = outputs(ours, theirs)
    assert (mine - base).abs().max() > 1e-2
    torch.testing.assert_close(mine, stock, rtol=1e-4, atol=1e-5)


def test_an_adapter_that_diffusers_saved_is_read(models, tmp_path: Path) -> None:
    from peft import LoraConfig

    ours, theirs = models
    theirs.add_adapter(
        LoraConfig(
            r=4, lora_alpha=10, target_modules=["to_q", "conv_point"], init_lora_weights=False
        )
    )
    theirs.save_lora_adapter(str(tmp_path))
    report = load_lora(ours, tmp_path)
    assert report.unmatched == ()
    assert report.ranks == {4: 6}
    mine, stock = outputs(ours, theirs)
    torch.testing.assert_close(mine, stock, rtol=1e-4, atol=1e-5)
    set_scale(ours, {"default": 0})
    plain = outputs(ours)[0]
    unload_lora(ours)
    assert torch.equal(plain, outputs(ours)[0])
