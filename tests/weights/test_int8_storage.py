"""Packing weights as int8 with a scale per output channel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from sana_like.weights.errors import WeightsError
from sana_like.weights.int8 import SCALE_SUFFIX, pack_int8, unpack_int8
from sana_like.weights.strict import WeightsReader


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([(4, 3), (2, 3, 3, 3), (5, 1, 3, 3), (1, 7)]),
    st.floats(-30, 20),
    st.integers(0, 2**31),
)
def test_the_error_is_at_most_half_a_step_per_channel(shape, exponent: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator) * 2**exponent
    packed, _ = pack_int8({"x.weight": weight}, min_numel=0)
    scale = packed["x.weight" + SCALE_SUFFIX]
    back = unpack_int8(packed["x.weight"], scale)
    bound = scale.view(-1, *(1,) * (weight.ndim - 1)) * (0.5 + 1e-4)
    assert packed["x.weight"].dtype == torch.int8
    assert ((back - weight).abs() <= bound).all()


def test_packing_what_was_unpacked_changes_nothing() -> None:
    packed, _ = pack_int8({"x.weight": torch.randn(8, 16)}, min_numel=0)
    again, _ = pack_int8(
        {"x.weight": unpack_int8(packed["x.weight"], packed["x.weight" + SCALE_SUFFIX])},
        min_numel=0,
    )
    assert torch.equal(packed["x.weight"], again["x.weight"])


def test_only_matrices_and_kernels_are_packed() -> None:
    state = {
        "x.weight": torch.randn(64, 64),
        "norm.weight": torch.ones(4096),
        "x.bias": torch.randn(64),
        "scale_shift_table": torch.randn(6, 1024),
        "small.weight": torch.randn(2, 2),
        "count": torch.tensor(3),
        "dead.weight": torch.zeros(64, 64),
    }
    packed, metadata = pack_int8(state)
    assert metadata == {"sana_like.int8": "1"}
    assert {key for key, value in packed.items() if value.dtype == torch.int8} == {
        "x.weight",
        "dead.weight",
    }
    assert packed["scale_shift_table"].dtype == torch.float32
    assert packed["count"].dtype == torch.int64
    dead = unpack_int8(packed["dead.weight"], packed["dead.weight" + SCALE_SUFFIX])
    assert torch.equal(dead, state["dead.weight"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_weights_are_refused(bad: float) -> None:
    weight = torch.randn(64, 64)
    weight[3, 3] = bad
    with pytest.raises(WeightsError, match=r"x\.weight"):
        pack_int8({"x.weight": weight})


def test_int8_is_unpacked_only_where_the_file_says_so(tmp_path: Path) -> None:
    packed, metadata = pack_int8({"x.weight": torch.randn(64, 64)})
    save_file(packed, tmp_path / "marked.safetensors", metadata)
    save_file(packed, tmp_path / "plain.safetensors")
    marked = WeightsReader.open(tmp_path / "marked.safetensors")
    plain = WeightsReader.open(tmp_path / "plain.safetensors")
    assert marked.tensors.keys() == {"x.weight"}
    assert marked.read("x.weight").dtype == torch.float32
    assert plain.tensors.keys() == set(packed)
    assert plain.read("x.weight").dtype == torch.int8


@pytest.mark.parametrize(
    "scale", [torch.ones(63), torch.ones(64).half(), torch.ones(64, 1), torch.ones(())]
)
def test_a_scale_that_does_not_fit_is_refused(tmp_path: Path, scale: torch.Tensor) -> None:
    packed, metadata = pack_int8({"x.weight": torch.randn(64, 64)})
    packed["x.weight" + SCALE_SUFFIX] = scale
    save_file(packed, tmp_path / "x.safetensors", metadata)
    with pytest.raises(WeightsError, match="does not fit its scale"):
        WeightsReader.open(tmp_path / "x.safetensors")
