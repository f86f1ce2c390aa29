from __future__ import annotations

import pytest
import torch

from sana_like_app.devices import DeviceError, check_offload, choose_device, choose_dtype


@pytest.fixture
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)


@pytest.mark.usefixtures("no_accelerator")
def test_auto_without_accelerator_is_the_cpu_in_fp32() -> None:
    device = choose_device("auto")
    assert device == torch.device("cpu")
    assert choose_dtype("auto", device) is torch.float32


@pytest.mark.usefixtures("two_gpus")
def test_auto_with_gpu_is_bf16() -> None:
    device = choose_device("auto")
    assert device == torch.device("cuda")
    assert choose_dtype("auto", device) is torch.bfloat16
    assert choose_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.usefixtures("two_gpus")
def test_gpu_without_bf16_gets_fp32_and_refuses_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    device = torch.device("cuda")
    assert choose_dtype("auto", device) is torch.float32
    with pytest.raises(DeviceError, match="no bf16; use --dtype fp32"):
        choose_dtype("bf16", device)


@pytest.mark.usefixtures("no_accelerator")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps"])
def test_absent_device_is_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(DeviceError, match=rf"'{name}'.*use --device cpu"):
        choose_device(name)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["gpu", "cuda:2", "cuda:x", "cpu:0", "", "cuda:-1"])
def test_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(DeviceError):
        choose_device(name)


def test_fp16_on_cpu_is_refused() -> None:
    with pytest.raises(DeviceError, match="bf16"):
        choose_dtype("fp16", torch.device("cpu"))
    with pytest.raises(DeviceError, match="legal are"):
        choose_dtype("int8", torch.device("cpu"))
    assert choose_dtype("bf16", torch.device("cpu")) is torch.bfloat16


def test_offload_needs_an_accelerator() -> None:
    check_offload("none", torch.device("cpu"))
    check_offload("group", torch.device("cuda"))
    with pytest.raises(DeviceError, match="leave it out"):
        check_offload("model", torch.device("cpu"))
    with pytest.raises(DeviceError, match="legal are none, model"):
        check_offload("disk", torch.device("cuda"))
