"""Adapters on a model: what fits, what does not, and that the base is never lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sana_like.weights.errors import WeightsError
from sana_like.weights.lora import (
    fuse,
    load_lora,
    lora_scaled,
    save_lora,
    set_scale,
    unfuse,
    unload_lora,
)
from sana_like.weights.lora_layers import adapter_names
from sana_like.weights.model import published_state_dict

LAYERS = ("blocks.0", "blocks.1", "expand")


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def model(request, tiny_class):
    return tiny_class(num_layers=2).to(request.param).eval()


def factors(rank: int = 2, width: int = 8, *, conv: bool = True, seed: int = 0):
    """A LoRA for three layers of the tiny model, the pointwise one in a convolution's shape."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name in LAYERS:
        out = 2 * width if name == "expand" else width
        down = torch.randn(rank, width, generator=generator)
        up = torch.randn(out, rank, generator=generator)
        if name == "expand" and conv:
            down, up = down[..., None, None], up[..., None, None]
        tensors[f"transformer.{name}.lora_A.weight"] = down
        tensors[f"transformer.{name}.lora_B.weight"] = up
    return tensors


def snapshot(model) -> dict[str, torch.Tensor]:
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}


def same(left, right) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def run(model) -> torch.Tensor:
    x = torch.linspace(-1, 1, 24, dtype=model.expand.weight.dtype).view(3, 8)
    with torch.no_grad():
        for block in model.blocks:
            x = block(x)
        return model.expand(x)


def test_an_adapter_adds_its_scaled_product(tiny_class) -> None:
    model = tiny_class(num_layers=2).eval()
    tensors = factors()
    tensors["transformer.expand.alpha"] = torch.tensor(1.0)
    base = {name: model.get_submodule(name).weight.clone() for name in LAYERS}
    report = load_lora(model, tensors)
    assert set(report.matched) == set(LAYERS)
    assert report.unmatched == ()
    assert report.ranks == {2: 3}
    plain = tiny_class(num_layers=2)
    for name in LAYERS:
        up = tensors[f"transformer.{name}.lora_B.weight"].flatten(1)
        down = tensors[f"transformer.{name}.lora_A.weight"].flatten(1)
        scale = 0.5 if name == "expand" else 1.0  # alpha 1 over rank 2, or alpha = rank
        layer, source = plain.get_submodule(name), model.get_submodule(name)
        layer.weight.data = base[name] + scale * up @ down
        layer.bias.data = source.get_base_layer().bias.data
    torch.testing.assert_close(run(model), run(plain), rtol=1e-5, atol=1e-5)


def test_zero_scale_and_unloading_are_bit_equal_to_the_base(model) -> None:
    before, output = snapshot(model), run(model)
    load_lora(model, factors())
    assert not torch.equal(run(model), output)
    set_scale(model, {"default": 0.0})
    assert torch.equal(run(model), output)
    set_scale(model, {"default": 0.7})
    assert not torch.equal(run(model), output)
    unload_lora(model)
    assert torch.equal(run(model), output)
    assert same(before, snapshot(model))
    assert adapter_names(model) == []
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_zero_scale_silences_even_an_adapter_that_overflows(model) -> None:
    output = run(model)
    huge = {key: tensor * 1e30 for key, tensor in factors().items()}
    load_lora(model, huge)
    assert not torch.isfinite(run(model)).all()
    set_scale(model, {"default": 0.0})
    assert torch.equal(run(model), output)


def test_fusing_gives_the_adapted_model_and_unfusing_the_base(model) -> None:
    before, output = snapshot(model), run(model)
    load_lora(model, factors())
    set_scale(model, {"default": 0.3})
    adapted = run(model)
    fuse(model)
    tolerance = 1e-5 if adapted.dtype == torch.float32 else 4e-2
    torch.testing.assert_close(run(model), adapted, rtol=tolerance, atol=tolerance)
    unfuse(model)
    assert torch.equal(run(model), adapted)
    fuse(model)
    unload_lora(model)
    assert torch.equal(run(model), output)
    assert same(before, snapshot(model))


def test_fusing_for_good_leaves_a_plain_model_that_saves(tmp_path, model) -> None:
    keys = published_state_dict(model).keys()
    load_lora(model, factors())
    with pytest.raises(WeightsError, match="attached LoRA"):
        model.save_pretrained(tmp_path)
    fuse(model, keep_base=False)
    fused = run(model)
    assert published_state_dict(model).keys() == keys
    model.save_pretrained(tmp_path)
    assert torch.equal(run(type(model).from_pretrained(tmp_path)), fused)
    with pytest.raises(WeightsError, match="no adapter to unload"):
        unload_lora(model)


def test_what_is_fused_is_left_alone(model) -> None:
    load_lora(model, factors())
    fuse(model)
    for action in (
        lambda: fuse(model),
        lambda: set_scale(model, {"default": 0.5}),
        lambda: load_lora(model, factors(), "second"),
        lambda: lora_scaled(model, 0.5).__enter__(),
    ):
        with pytest.raises(WeightsError, match="unfuse before"):
            action()


def test_only_active_adapters_are_fused(model) -> None:
    with pytest.raises(WeightsError, match="attached: none"):
        fuse(model)
    load_lora(model, factors())
    set_scale(model, {"default": 0})
    with pytest.raises(WeightsError, match="no active adapter to fuse; attached: default"):
        fuse(model)


def test_two_adapters_add_up_and_come_off_singly(tiny_class) -> None:
    model = tiny_class(num_layers=2).eval()
    base = run(model)
    load_lora(model, factors(seed=1), "one")
    only_one = run(model)
    load_lora(model, factors(seed=2, rank=3), "two")
    both = run(model)
    assert adapter_names(model) == ["one", "two"]
    set_scale(model, {"two": 0})
    assert torch.equal(run(model), only_one)
    set_scale(model, {"two": 1})
    assert torch.equal(run(model), both)
    fuse(model)
    torch.testing.assert_close(run(model), both, rtol=1e-5, atol=1e-5)
    unfuse(model)
    unload_lora(model, "two")
    assert torch.equal(run(model), only_one)
    unload_lora(model, "one")
    assert torch.equal(run(model), base)


@pytest.mark.parametrize("factor", [0, 0.5, 1, 3.7])
def test_a_scaled_block_gives_the_scales_back(model, factor: float) -> None:
    base = run(model)
    load_lora(model, factors())
    set_scale(model, {"default": 0.3})
    before = run(model)
    with pytest.raises(KeyError), lora_scaled(model, factor):
        inside = run(model)
        raise KeyError
    assert torch.equal(run(model), before)
    assert torch.equal(inside, base) == (factor == 0)
    assert torch.equal(inside, before) == (factor == 1)


def test_no_match_is_an_error_with_counts(model) -> None:
    before = snapshot(model)
    foreign = {key.replace("transformer.", "unet.down."): value for key, value in factors().items()}
    with pytest.raises(WeightsError, match=r"0 of 3 adapted layers fit TinyModel \(3 keys"):
        load_lora(model, foreign, strict=False)
    assert same(before, snapshot(model))


def test_a_partial_match_is_an_error_or_a_list(model) -> None:
    tensors = factors()
    for part in ("lora_A", "lora_B"):
        tensors[f"other.{part}.weight"] = tensors.pop(f"transformer.blocks.0.{part}.weight")
    with pytest.raises(
        WeightsError, match=r"2 of 3 adapted layers fit TinyModel; left over: other"
    ):
        load_lora(model, tensors)
    assert adapter_names(model) == []
    report = load_lora(model, tensors, strict=False)
    assert report.unmatched == ("other",)
    assert set(report.matched) == {"blocks.1", "expand"}


def test_the_wrong_width_names_both_shapes(model) -> None:
    with pytest.raises(WeightsError, match=r"\[2, 16\].*which takes \[2, 8\] and \[8, 2\]"):
        load_lora(model, factors(width=16))
    assert adapter_names(model) == []


def test_depthwise_convolutions_carry_no_adapter(model) -> None:
    tensors = factors()
    tensors["transformer.depth.lora_A.weight"] = torch.ones(2, 1, 3, 3)
    tensors["transformer.depth.lora_B.weight"] = torch.ones(8, 2, 1, 1)
    with pytest.raises(WeightsError, match=r"left over: transformer\.depth"):
        load_lora(model, tensors)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "../x"])
def test_adapter_names_are_plain(model, name: str) -> None:
    with pytest.raises(WeightsError, match="letters, digits"):
        load_lora(model, factors(), name)


def test_a_taken_name_and_an_unknown_one_are_refused(model) -> None:
    load_lora(model, factors())
    with pytest.raises(WeightsError, match="is taken"):
        load_lora(model, factors())
    for action in (
        lambda: set_scale(model, {"nope": 1}),
        lambda: unload_lora(model, "nope"),
        lambda: save_lora(model, "unused", "nope"),
    ):
        with pytest.raises(WeightsError, match="attached: default"):
            action()
    with pytest.raises(WeightsError, match="not a finite number"):
        set_scale(model, {"default": float("nan")})


def test_a_fused_result_that_overflows_is_refused(model) -> None:
    before = snapshot(model)
    load_lora(model, {key: tensor * 1e20 for key, tensor in factors().items()})
    with pytest.raises(WeightsError, match="not finite"):
        fuse(model)
    unload_lora(model)
    assert same(before, snapshot(model))


def test_a_saved_adapter_loads_alike(tmp_path: Path, tiny_class) -> None:
    model = tiny_class(num_layers=2).eval()
    tensors = factors(rank=3)
    tensors["transformer.blocks.0.alpha"] = torch.tensor(1.5)
    tensors["transformer.blocks.1.lora_A.weight"] = torch.randn(5, 8)
    tensors["transformer.blocks.1.lora_B.weight"] = torch.randn(8, 5)
    load_lora(model, tensors)
    adapted = run(model)
    path = save_lora(model, tmp_path)
    unload_lora(model)
    report = load_lora(model, tmp_path)
    assert report.source == str(path)
    assert report.ranks == {3: 2, 5: 1}
    assert torch.equal(run(model), adapted)


def test_convolutions_without_groups_carry_one(tiny_class) -> None:
    class ConvModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(4, 6, 2, stride=2)

    model = ConvModel().eval()
    tensors = {
        "conv.lora_A.weight": torch.randn(2, 4, 2, 2),
        "conv.lora_B.weight": torch.randn(6, 2, 1, 1),
    }
    x = torch.randn(1, 4, 8, 8)
    load_lora(model, tensors)
    adapted = model.conv(x)
    fuse(model)
    torch.testing.assert_close(model.conv(x), adapted, rtol=1e-4, atol=1e-5)
