"""Weight-only quantisation: which layers, how close, how small, and what it refuses."""

from __future__ import annotations

import sys

import pytest
import torch

from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.weights.errors import WeightsError
from sana_like.weights.lora import fuse, load_lora, unload_lora
from sana_like.weights.quantize import is_quantized, parameter_bytes, quantize

INPUTS = {
    "hidden_states": torch.linspace(-1, 1, 512).view(1, 32, 4, 4),
    "encoder_hidden_states": torch.linspace(-1, 1, 320).view(1, 5, 64),
    "timestep": torch.tensor([500.0]),
}


@pytest.fixture
def model() -> SanaTransformer2DModel:
    config = {"num_attention_heads": 2, "num_layers": 2, "caption_channels": 64}
    cross = {"num_cross_attention_heads": 2, "cross_attention_head_dim": 32}
    return SanaTransformer2DModel(**config, **cross, cross_attention_dim=64).eval()


def run(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(**INPUTS).sample


@pytest.mark.parametrize(("scheme", "bound"), [("int8wo", 0.02), ("fp8wo", 0.08)])
def test_every_inner_linear_layer_is_quantised_and_the_result_close(model, scheme, bound) -> None:
    pytest.importorskip("torchao")
    exact = run(model)
    report = quantize(model, scheme)
    # Four projections of each attention and both of the feed-forward, in two blocks.
    assert len(report.quantized) == 2 * (4 + 4 + 2)
    assert "transformer_blocks.0.ff.conv_inverted" in report.quantized
    assert "proj_out" in report.kept
    assert not is_quantized(model.time_embed.linear.weight)
    assert not is_quantized(model.transformer_blocks[0].ff.conv_depth.weight)
    assert report.bytes_after == parameter_bytes(model) < 0.6 * report.bytes_before
    error = (run(model) - exact).norm() / exact.norm()
    assert 0 < error < bound


def test_names_to_skip_are_left_alone(model) -> None:
    pytest.importorskip("torchao")
    report = quantize(model, skip=("attn2",))
    assert len(report.quantized) == 2 * (4 + 2)
    assert not any("attn2" in name for name in report.quantized)


def test_a_quantised_model_is_not_saved_and_not_quantised_again(model, tmp_path) -> None:
    pytest.importorskip("torchao")
    quantize(model)
    with pytest.raises(WeightsError, match="before quantising"):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(WeightsError, match="quantised already"):
        quantize(model)


def test_an_adapter_can_be_attached_but_not_fused(model) -> None:
    pytest.importorskip("torchao")
    quantize(model)
    base = run(model)
    name = "transformer_blocks.0.attn1.to_v"
    tensors = {
        f"transformer.{name}.lora_A.weight": torch.randn(4, 64),
        f"transformer.{name}.lora_B.weight": torch.randn(64, 4),
    }
    load_lora(model, tensors)
    assert (run(model) - base).abs().max() > 1e-3
    with pytest.raises(WeightsError, match="fuse before quantising"):
        fuse(model)
    unload_lora(model)
    assert torch.equal(run(model), base)


def test_wrong_requests_are_refused(model) -> None:
    with pytest.raises(WeightsError, match="legal: int8wo, fp8wo"):
        quantize(model, "int4")
    with pytest.raises(WeightsError, match="no linear layer outside those kept"):
        quantize(model, skip=("transformer_blocks",))


def test_without_torchao_the_error_says_how_to_get_it(model, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ImportError, match=r"sana-like\[quant\]"):
        quantize(model)
