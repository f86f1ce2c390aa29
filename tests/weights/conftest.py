"""A tiny model, and helpers to write safetensors files byte by byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.configuration_utils import register_to_config
from torch import nn

from sana_like.layers.pointwise import PointwiseLinear
from sana_like.weights.model import StrictModel


class TinyModel(StrictModel):
    """A pointwise layer, a plain one, a convolution, persistent and derived buffers."""

    _extension_keys = {"extra_gain": None}  # noqa: RUF012

    @register_to_config
    def __init__(self, width: int = 8, num_layers: int = 1, extra_gain: float | None = None):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))
        self.expand = PointwiseLinear(width, 2 * width)
        self.depth = nn.Conv2d(width, width, 3, groups=width)
        self.norm = nn.BatchNorm2d(width)
        steps = torch.arange(16, dtype=torch.float64, device="cpu")
        self.register_buffer("table", (steps / 7).sin().float(), persistent=False)


@pytest.fixture
def tiny_class() -> type[TinyModel]:
    return TinyModel


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    TinyModel().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def raw_safetensors() -> Callable[..., bytes]:
    """Bytes of a safetensors file with any header, legal or not, and `data` behind it."""

    def build(header: Mapping[str, Any] | bytes, data: bytes = b"") -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data

    return build
