"""`--lora PATH[:SCALE]`: acts, can be weighed to nothing, and is refused where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

Cli = Callable[..., Any]
LAYER = "transformer_blocks.0.attn1.to_q"


def write_lora(path: Path, layer: str = f"transformer.{LAYER}", width: int = 32) -> Path:
    generator = torch.Generator().manual_seed(0)
    down = torch.randn(4, width, generator=generator)
    up = torch.randn(width, 4, generator=generator)
    save_file({f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}, path)
    return path


@pytest.fixture
def picture(cli: Cli, sana: Path, tmp_path: Path) -> Callable[..., bytes]:
    """The pixels that `generate` makes with further options."""

    def make(*options: object) -> bytes:
        done = cli(
            "generate", "a fox", "--model", sana, "--seed", 1, "--steps", 2, "--output", "a.png",
            *options,
        )  # fmt: skip
        assert done.code == 0, done.err
        return Image.open(tmp_path / "a.png").tobytes()

    return make


def test_an_adapter_acts_as_strongly_as_asked(
    cli: Cli, picture: Callable[..., bytes], tmp_path: Path
) -> None:
    lora = write_lora(tmp_path / "lora.safetensors")
    base, full = picture(), picture("--lora", lora)
    assert full != base
    assert picture("--lora", f"{lora}:1.0") == full
    assert picture("--lora", f"{lora}:0") == base
    half = picture("--lora", f"{lora}:0.5")
    assert half not in (base, full)
    assert cli("rerun", "a.png", "--output", "b.png").code == 0
    assert Image.open(tmp_path / "b.png").tobytes() == half
    write_lora(lora, f"transformer.{LAYER.replace('to_q', 'to_k')}")
    assert cli("rerun", "a.png", "--output", "b.png").code == 1


@pytest.mark.parametrize(
    ("layer", "width", "needle"),
    [("unet.other.layer", 32, "lora.safetensors"), (f"transformer.{LAYER}", 24, "24")],
)
def test_adapters_that_do_not_fit_are_refused(
    cli: Cli, sana: Path, tmp_path: Path, layer: str, width: int, needle: str
) -> None:
    write_lora(tmp_path / "lora.safetensors", layer, width)
    done = cli(
        "generate", "a fox", "--model", sana, "--lora", "lora.safetensors", "--output", "a.png"
    )
    assert done.code == 1
    assert needle in done.err
    assert not (tmp_path / "a.png").exists()
