from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sana_like_app.request import (
    LARGEST_SEED,
    PictureRequest,
    parse_adapter,
    parse_interval,
    parse_size,
    random_seed,
)


def request(**changes: Any) -> PictureRequest:
    return PictureRequest(**{"prompts": ("a fox",), "seed": 1, **changes})


@given(st.integers(1, 16384), st.integers(1, 16384))
def test_sizes_are_width_times_height(width: int, height: int) -> None:
    assert parse_size(f"{width}x{height}") == (width, height)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0x512", "width 0 .*nearest multiple of 32 is 32"),
        ("-64x512", "width -64 "),
        ("512.0x512", "'512.0'.*no whole number"),
        ('"512"x512', "no whole number"),
        ("512", "WIDTHxHEIGHT"),
        ("1x2x3", "WIDTHxHEIGHT"),
        ("512x99999999", "height 99999999"),
        ("512x\u0661", "no whole number"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_size(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width 0"),
        ({"height": -64}, "height -64"),
        ({"steps": 0}, "steps is 0"),
        ({"count": 0}, "count is 0"),
        ({"batch_size": -1}, "batch size is -1"),
        ({"seed": -1}, "seed -1"),
        ({"seed": LARGEST_SEED, "count": 2}, "out of range"),
        ({"guidance_scale": float("nan")}, "guidance scale is nan"),
        ({"pag_scale": -1.0}, "PAG scale"),
        ({"strength": 0.5}, "--strength needs --image"),
        ({"mask": Path("m.png")}, "--mask needs --image"),
        ({"image": Path("missing.png")}, "'missing.png' does not exist"),
        ({"image": Path("a.png"), "strength": 1.5}, "strength is 1.5"),
        ({"image": Path("a.png"), "strength": 0.0}, "strength is 0.0; legal are numbers above 0"),
        ({"image": Path("a.png"), "strength": float("nan")}, "strength is nan"),
        ({"controls": (Path("a.png"),), "image": Path("b.png")}, "do not go together"),
        ({"control_scale": 1.0}, "need --control"),
        ({"controls": (Path("a.png"),), "controlnets": ("x", "y")}, "as many"),
        ({"guidance_interval": (0.8, 0.2)}, "LOW < HIGH"),
        ({"adapters": (parse_adapter("lora.safetensors"),)}, "'lora.safetensors' does not exist"),
        ({"scheduler": "ddim"}, "legal are flow-dpm"),
        ({"prompts": ()}, "no prompt"),
    ],
)
def test_requests_that_cannot_be_meant_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        request(**changes).check()


def test_every_picture_has_its_own_seed() -> None:
    asked = request(prompts=("a", "b"), seed=10, count=2)
    asked.check()
    assert asked.pictures() == [("a", 10), ("a", 11), ("b", 12), ("b", 13)]


def test_adapters() -> None:
    assert parse_adapter("x.safetensors").scale == 1.0
    assert parse_adapter("x.safetensors:0.5").scale == 0.5
    assert parse_adapter(r"C:\x").path == Path(r"C:\x")
    assert parse_adapter("a:b:2").path == Path("a:b")


def test_intervals() -> None:
    assert parse_interval("0.1:0.8") == (0.1, 0.8)
    for text in ("0.1", "a:b", "", ":"):
        with pytest.raises(ValueError, match="LOW:HIGH"):
            parse_interval(text)


def test_random_seeds_differ_and_are_legal() -> None:
    seeds = {random_seed() for _ in range(100)}
    assert len(seeds) > 95
    request(seed=seeds.pop()).check()
