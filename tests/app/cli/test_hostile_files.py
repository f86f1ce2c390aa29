"""Weight files that are broken or mean harm: refused at once, and nothing in them runs."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


class Trap:
    """A pickle that writes a file when it is opened."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut in the header": lambda data: data[:40],
    "cut at half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "trailing bytes": lambda data: data + b"\0" * 64,
    "a web page": lambda data: b"<!DOCTYPE html><html><title>404</title></html>",
    "a Git-LFS pointer": lambda data: (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 1234\n"
    ),
}


@pytest.fixture
def model(sana: Path, tmp_path: Path) -> Path:
    """A folder of our own to damage."""
    return Path(shutil.copytree(sana, tmp_path / "model"))


def weights_of(model: Path) -> Path:
    (path,) = (model / "transformer").glob("*.safetensors")
    return path


def refused(cli: Cli, model: Path, *needles: str) -> None:
    began = time.process_time()
    done = cli("generate", "a fox", "--model", model, "--output", "a.png", "--steps", 1)
    took = time.process_time() - began
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert last.startswith("error: ")
    for needle in needles:
        assert needle in last, last
    assert not list(Path.cwd().glob("*.png*"))
    assert took < 2  # the parts before the broken one were loaded; the refusal is a moment


@pytest.mark.parametrize("damage", DAMAGE)
def test_broken_weights_are_refused_by_name(cli: Cli, model: Path, damage: str) -> None:
    path = weights_of(model)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    refused(cli, model, path.name)
    inspected = cli("inspect", path)
    assert inspected.code == 1 and path.name in inspected.err


def test_a_pickle_under_the_right_name_does_not_run(cli: Cli, model: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = weights_of(model)
    path.write_bytes(pickle.dumps(Trap(marker)))
    refused(cli, model, path.name)
    inspected = cli("inspect", path)
    assert inspected.code == 1 and path.name in inspected.err
    assert not marker.exists()


@pytest.mark.parametrize("suffix", [".bin", ".pth", ".pt", ".ckpt"])
def test_pickled_weights_are_refused_with_the_converter(
    cli: Cli, model: Path, tmp_path: Path, suffix: str
) -> None:
    marker = tmp_path / "marker"
    path = weights_of(model)
    path.with_suffix(suffix).write_bytes(pickle.dumps(Trap(marker)))
    path.unlink()
    refused(cli, model, "sana-like convert")
    assert not marker.exists()


def test_the_converter_runs_no_code(cli: Cli, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Trap(marker)))
    done = cli("convert", "evil.pth", "out")
    assert done.code == 1 and done.err.startswith("error: ")
    assert not marker.exists() and not (tmp_path / "out").exists()


def test_an_index_may_not_point_outside(cli: Cli, model: Path, tmp_path: Path) -> None:
    path = weights_of(model)
    outside = tmp_path / "outside.safetensors"
    path.rename(outside)
    index = {"metadata": {}, "weight_map": {"a.weight": "../../outside.safetensors"}}
    Path(f"{path}.index.json").write_text(json.dumps(index))
    refused(cli, model, "outside.safetensors")


def test_a_recipe_from_anyone_is_data(cli: Cli, tmp_path: Path) -> None:
    """A recipe decides what is computed, but starts no code and no download."""
    good = {
        "pipeline": "SanaPipeline", "model": "owner/name", "prompt": "x", "negative_prompt": "",
        "seed": 1, "settings": {}, "run": {"weights": {"owner/name": "0"}},
    }  # fmt: skip
    changes: list[dict[str, Any]] = [
        {},
        {"pipeline": "DiffusionPipeline"},
        {"pipeline": "__class__"},
        {"seed": None},
        {"seed": 2**63},
        {"prompt": None},
        {"settings": [1]},
        {"settings": {"callback_on_step_end": {"a": 1}}},
        {"run": {"inputs": {"image": [{"path": 3}]}}},
        {"run": {"inputs": {"vae": []}}},
        {"run": {"adapters": [{"path": "x"}]}},
        {"run": []},
        {"model": 7},
    ]
    for number, change in enumerate(changes):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({**good, **change}))
        done = cli("rerun", path, "--output", "out.png")
        assert done.code == 1, change
        assert done.err.startswith("error: ") and done.err.count("\n") == 1, done.err
    assert not (tmp_path / "out.png").exists()
