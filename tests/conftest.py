"""Rules for every test: no network, one thread, a fixed seed, no luck with unwritten memory."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

# Set before any library reads it: a hub lookup then fails at once instead of retrying.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Triton decides at its import whether kernels are compiled, or run in Python on CPU tensors.
# `TRITON_INTERPRET=0 pytest -m gpu` compiles them.
os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
import torch.utils._device
from hypothesis import settings

LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class NetworkBlockedError(RuntimeError):
    """A test tried to leave the machine."""


def pytest_configure() -> None:
    """Close the network and keep torch to one thread; workers share the cores."""
    torch.set_num_threads(1)
    # Wall time would measure what else the machine is doing.
    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("ci" if os.environ.get("CI") else "unhurried")
    # `with torch.device(...)` looks functions up in a table made on first use, which must be before
    # `_poisoned_memory` replaces some of them.
    torch.utils._device._device_constructors()
    socket.socket.connect = _guarded(socket.socket.connect)  # type: ignore[method-assign]
    socket.socket.connect_ex = _guarded(socket.socket.connect_ex)  # type: ignore[method-assign]
    socket.getaddrinfo = _guarded_lookup(socket.getaddrinfo)


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    def connect(sock: socket.socket, address: Any) -> Any:
        if sock.family != getattr(socket, "AF_UNIX", None) and address[0] not in LOOPBACK:
            raise NetworkBlockedError(f"tests may not connect to {address}")
        return method(sock, address)

    return connect


def _guarded_lookup(function: Callable[..., Any]) -> Callable[..., Any]:
    def lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in LOOPBACK and host is not None:
            raise NetworkBlockedError(f"tests may not look up {host}")
        return function(host, *args, **kwargs)

    return lookup


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill `torch.empty` and its kin with NaN, so that code which forgets to write is seen."""
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))
    yield


def _poisoned(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = function(*args, **kwargs)
        if tensor.is_floating_point() and not tensor.is_meta:
            with torch.no_grad():
                tensor.fill_(float("nan"))
        return tensor

    return make
