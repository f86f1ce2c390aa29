"""Adapters by the methods of a model: strict, and exact on the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.weights.errors import WeightsError
from sana_like.weights.lora_layers import adapter_names

LAYERS = ("attn1.to_q", "attn2.to_out.0", "ff.conv_inverted", "ff.conv_point")


@pytest.fixture
def model(narrow: dict[str, Any]) -> SanaTransformer2DModel:
    torch.manual_seed(0)
    return SanaTransformer2DModel(in_channels=4, out_channels=4, sample_size=4, **narrow).eval()


def adapter(model: SanaTransformer2DModel, prefix: str = "", blocks: int = 2) -> dict[str, Tensor]:
    tensors = {}
    for name in (f"transformer_blocks.{i}.{layer}" for i in range(blocks) for layer in LAYERS):
        rows, columns = model.get_submodule(name).weight.shape
        sides = (1, 1) if ".ff." in name else ()
        tensors[f"{prefix}{name}.lora_A.weight"] = 0.3 * torch.randn(2, columns, *sides)
        tensors[f"{prefix}{name}.lora_B.weight"] = 0.3 * torch.randn(rows, 2, *sides)
    return tensors


def output(model: SanaTransformer2DModel) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    latent = torch.randn(1, 4, 4, 4, generator=generator).to(dtype)
    text = torch.randn(1, 3, 20, generator=generator).to(dtype)
    with torch.no_grad():
        return model(latent, text, torch.tensor([500.0])).sample


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_convolutional_factors_reach_every_layer(model: Any, prefix: str) -> None:
    base = output(model)
    report = model.load_lora_adapter(adapter(model, prefix), prefix=None)
    assert report.adapter_name == "default_0"
    assert len(report.matched) == 2 * len(LAYERS)
    assert not torch.allclose(output(model), base, atol=1e-3)
    model.unload_lora()
    assert torch.equal(output(model), base)


def test_what_does_not_fit_is_refused(model: Any) -> None:
    base = output(model)
    half = adapter(model, blocks=1)
    half |= {f"layers.{key}": value for key, value in adapter(model, blocks=1).items()}
    with pytest.raises(WeightsError, match="4 of 8"):
        model.load_lora_adapter(half, prefix=None)
    with pytest.raises(WeightsError, match="0 of 8"):
        model.load_lora_adapter(adapter(model, "unet."))
    for wrong in ({"prefix": "unet"}, {"hotswap": True}, {"use_safetensors": False}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            model.load_lora_adapter(adapter(model), **wrong)
    assert adapter_names(model) == []
    assert torch.equal(output(model), base)
    assert len(model.load_lora_adapter(half, strict=False).unmatched) == 4


@pytest.mark.parametrize("alpha", [float("nan"), float("inf")])
def test_an_alpha_that_is_not_finite_is_refused(model: Any, alpha: float) -> None:
    key = "transformer_blocks.0.attn1.to_q.alpha"
    with pytest.raises(WeightsError, match=r"attn1\.to_q\.alpha is (nan|inf)"):
        model.load_lora_adapter(adapter(model) | {key: torch.tensor(alpha)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fusing_is_undone_bit_for_bit(model: Any, dtype: torch.dtype) -> None:
    model.to(dtype)
    base = output(model)
    model.load_lora_adapter(adapter(model))
    loose = output(model)
    model.fuse_lora(0.5)
    assert not torch.equal(output(model), base)
    model.unfuse_lora()
    assert torch.equal(output(model), loose)
    model.unload_lora()
    assert torch.equal(output(model), base)


def test_the_last_one_deleted_leaves_a_plain_model(model: Any) -> None:
    base = output(model)
    model.load_lora_adapter(adapter(model), adapter_name="one")
    model.load_lora_adapter(adapter(model), adapter_name="two")
    with pytest.raises(WeightsError, match="one, two"):
        model.save_lora_adapter("nowhere")
    model.set_adapters(["one", "two"], [0.0, 0.0])
    assert torch.equal(output(model), base)
    model.delete_adapters(["one", "two"])
    assert torch.equal(output(model), base)
    assert model.load_lora_adapter(adapter(model)).matched


def test_one_of_several_files(model: Any, tmp_path: Path) -> None:
    for name in ("first", "second"):
        save_file(adapter(model), tmp_path / f"{name}.safetensors")
    with pytest.raises(WeightsError, match=r"first\.safetensors, second\.safetensors"):
        model.load_lora_adapter(tmp_path)
    report = model.load_lora_adapter(tmp_path, weight_name="second.safetensors")
    assert report.source.endswith("second.safetensors")
    model.unload_lora()
    for name in ("third.safetensors", "../first.safetensors", "first.bin", "/first.safetensors"):
        with pytest.raises(WeightsError):
            model.load_lora_adapter(tmp_path, weight_name=name)
