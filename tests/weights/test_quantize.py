"""Quantisation to 8 bits: which layers, how close, how small, and what it refuses."""

from __future__ import annotations

import sys

import pytest
import torch

from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.weights.errors import WeightsError
from sana_like.weights.lora import fuse, load_lora, unload_lora
from sana_like.weights.quantize import (
    SCHEMES,
    check_scheme,
    is_quantized,
    parameter_bytes,
    quantize,
)

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


@pytest.mark.parametrize("scheme", ["int8", "int8-weights"])
def test_a_block_that_does_not_bear_it_is_refused_and_left_alone(model, scheme) -> None:
    """One huge weight in a row sets its scale, and the others vanish."""
    pytest.importorskip("torchao")
    with torch.no_grad():
        for name in ("attn1.to_v", "ff.conv_inverted"):
            model.transformer_blocks[0].get_submodule(name).weight[:, 0] = 1e4
        model.transformer_blocks[0].norm1.forward = lambda x, *_: no_first(x)
        model.transformer_blocks[0].norm2.forward = lambda x, *_: no_first(x)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(WeightsError, match="first block would be off by"):
        quantize(model, scheme)
    for name, parameter in model.named_parameters():
        assert not is_quantized(parameter) and torch.equal(parameter, before[name])
    assert quantize(model, scheme, bound=1e3).error > SCHEMES[scheme].bound


def no_first(x: torch.Tensor) -> torch.Tensor:
    """A stream whose first channel is zero, so that weights on it do nothing."""
    return torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:]], dim=-1)


@pytest.mark.parametrize("changes", [{"guidance_embeds": True}, {"patch_size": 2}])
def test_the_check_reads_every_kind_of_model(changes) -> None:
    pytest.importorskip("torchao")
    cross = {"num_cross_attention_heads": 2, "cross_attention_head_dim": 32}
    model = SanaTransformer2DModel(
        num_attention_heads=2, num_layers=1, caption_channels=64, cross_attention_dim=64,
        **cross, **changes,
    ).eval()  # fmt: skip
    assert 0 < quantize(model, "int8").error < 0.05


def test_layers_too_odd_for_a_product_are_kept() -> None:
    pytest.importorskip("torchao")
    cross = {"num_cross_attention_heads": 2, "cross_attention_head_dim": 30}
    model = SanaTransformer2DModel(
        num_attention_heads=2, num_layers=1, caption_channels=64, cross_attention_dim=64, **cross
    ).eval()
    assert "transformer_blocks.0.attn2.to_q" in quantize(model, "int8").kept


def test_older_gpus_are_told_apart(monkeypatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    check_scheme("fp8", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(WeightsError, match=r"8\.9 or newer; legal on cuda: int8, int8-weights"):
        check_scheme("fp8", cuda)


@pytest.mark.parametrize(
    ("scheme", "bound"), [("int8-weights", 0.02), ("fp8-weights", 0.08), ("int8", 0.03)]
)
def test_every_inner_linear_layer_is_quantised_and_the_result_close(model, scheme, bound) -> None:
    pytest.importorskip("torchao")
    exact = run(model)
    report = quantize(model, scheme)
    # Four projections of each attention and both of the feed-forward, in two blocks; but for the
    # text's, where activations are rounded too.
    assert len(report.quantized) == 2 * (4 + (2 if scheme == "int8" else 4) + 2)
    assert "transformer_blocks.0.ff.conv_inverted" in report.quantized
    assert "proj_out" in report.kept
    assert not is_quantized(model.time_embed.linear.weight)
    assert not is_quantized(model.transformer_blocks[0].ff.conv_depth.weight)
    assert report.bytes_after == parameter_bytes(model) < 0.6 * report.bytes_before
    error = (run(model) - exact).norm() / exact.norm()
    assert 0 < error < bound
    assert 0 < report.error <= report.bound == SCHEMES[scheme].bound


def test_names_to_skip_are_left_alone(model) -> None:
    pytest.importorskip("torchao")
    report = quantize(model, "int8-weights", skip=("attn2",))
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
    with pytest.raises(WeightsError, match="legal on cpu: int8, int8-weights, fp8-weights"):
        quantize(model, "int4")
    with pytest.raises(WeightsError, match=r"need a GPU.*legal on cpu: int8, "):
        quantize(model, "fp8")
    with pytest.raises(WeightsError, match="no linear layer outside those kept"):
        quantize(model, skip=("transformer_blocks",))


def test_without_torchao_the_error_says_how_to_get_it(model, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ImportError, match=r"sana-like\[quant\]"):
        quantize(model)
