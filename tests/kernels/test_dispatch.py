"""Which backend acts, what is said about it, and what is refused."""

from __future__ import annotations

import importlib

import pytest
import torch

from sana_like_kernels import dispatch, linear_attention, report, tuning, use_backend
from sana_like_kernels.testing import assert_close, relative_rms


@pytest.fixture
def inputs():
    return [torch.randn(1, 5, 2, 16) for _ in range(3)]


@pytest.fixture
def launches(monkeypatch):
    names = []

    def launch(kernel, grid, **arguments):
        names.append(kernel.__name__)
        original(kernel, grid, **arguments)

    original = dispatch.launch
    module = importlib.import_module("sana_like_kernels.linear_attention.launch")
    monkeypatch.setattr(module, "launch", launch)
    return names


def test_a_cpu_takes_plain_pytorch_by_itself(inputs, launches, interpreter):
    linear_attention(*inputs)
    linear_attention(*inputs, backend="auto")
    assert launches == []


def test_an_argument_wins_over_the_context(inputs, launches, interpreter):
    with use_backend("triton"):
        linear_attention(*inputs, backend="torch")
        assert launches == []
        linear_attention(*inputs)
        assert launches == ["key_value_kernel", "output_kernel"]
    linear_attention(*inputs)
    assert len(launches) == 2


def test_the_context_is_left_after_an_error():
    with pytest.raises(RuntimeError), use_backend("torch"):
        raise RuntimeError
    assert dispatch._forced == "auto"


def test_unknown_backends_are_refused(inputs):
    with pytest.raises(ValueError, match="'cuda' is unknown"), use_backend("cuda"):
        pass
    with pytest.raises(ValueError, match="'numpy' is unknown"):
        linear_attention(*inputs, backend="numpy")


def test_triton_that_cannot_act_is_an_error_that_says_why(inputs, monkeypatch):
    monkeypatch.setattr(dispatch, "_probe", lambda _: "the reason")
    with pytest.raises(ValueError, match="the reason; use backend 'torch' or 'auto'"):
        linear_attention(*inputs, backend="triton")


@pytest.mark.parametrize(
    ("kind", "missing", "cuda", "capability", "said"),
    [
        ("mps", False, False, None, "no kernels for mps"),
        ("cuda", True, True, (9, 0), "not installed"),
        ("cuda", False, False, None, "torch sees no GPU"),
        ("cuda", False, True, (7, 5), "7.5 is older"),
        ("cuda", False, True, (9, 0), None),
    ],
)
def test_probe(monkeypatch, kind, missing, cuda, capability, said):
    monkeypatch.setattr(dispatch, "_missing", lambda: missing)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    reason = dispatch._probe.__wrapped__(kind)
    assert reason is None if said is None else said in reason


def test_report_names_every_op_and_the_reason(monkeypatch):
    rows = report("cpu")
    assert {row.op for row in rows} == set(dispatch.OPS)
    assert {row.backend for row in rows} == {"torch"} and all(row.reason for row in rows)
    with use_backend("torch"):
        assert report("cuda")[0].reason == "chosen by use_backend"
    monkeypatch.setattr(dispatch, "_probe", lambda _: None)
    monkeypatch.setattr(dispatch, "_triton_version", lambda: "3.9")
    assert report("cuda")[0].backend == "triton"


def test_the_table_is_frozen_and_every_row_is_dated():
    rows = [row for rows in tuning.TABLE.values() for row in rows]
    assert all(row.measured[:4].isdigit() for row in rows)
    with pytest.raises(TypeError):
        tuning.TABLE["row"][0].blocks["ROWS"] = 3
    with pytest.raises(AttributeError):
        rows[0].num_warps = 2
    with pytest.raises(ValueError, match="no launch parameters"):
        tuning.parameters("row", 10**6, torch.float32)


def test_assert_close_fails_on_difference_shape_and_nan():
    x = torch.randn(9)
    assert_close("x", x, x * (1 + 1e-6), 1e-5)
    with pytest.raises(AssertionError, match="relative RMS"):
        assert_close("x", x, x * 1.1, 1e-5)
    with pytest.raises(AssertionError, match="shape"):
        assert_close("x", x, x[:3], 1.0)
    with pytest.raises(AssertionError, match="relative RMS nan"):
        assert_close("x", x, x * float("nan"), 1.0)
    assert relative_rms(torch.zeros(3), torch.full((3,), 2.0)) == pytest.approx(2.0)
