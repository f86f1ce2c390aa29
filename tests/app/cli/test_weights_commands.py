"""The other commands: `inspect`, `convert`, `zoo`, `doctor`, `licenses`, `train`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sana_like_app import diagnostics
from sana_like_app.diagnostics import Fact
from sana_like_app.terms import TERMS

Cli = Callable[..., Any]


def test_inspect_a_model_folder(cli: Cli, sana: Path) -> None:
    done = cli("inspect", sana)
    assert done.code == 0, done.err
    for needle in ("SanaTransformer2DModel", "AutoencoderDC", "float32", "parameters"):
        assert needle in done.out


def test_inspect_a_picture_gives_its_recipe(cli: Cli, sana: Path) -> None:
    cli("generate", "a fox", "--model", sana, "--seed", 5, "--steps", 1, "--output", "a.png")
    recipe = json.loads(cli("inspect", "a.png").out)
    assert recipe["seed"] == 5


@pytest.mark.parametrize("name", ["missing.png", "missing.safetensors", "missing", "."])
def test_inspect_of_nothing_fails(cli: Cli, name: str) -> None:
    done = cli("inspect", name)
    assert done.code == 1 and done.err.startswith("error: ")


def test_convert_a_published_checkpoint(cli: Cli, sana: Path, tmp_path: Path) -> None:
    (source,) = (sana / "transformer").glob("*.safetensors")
    config = json.loads((sana / "transformer" / "config.json").read_text("utf-8"))
    copy = tmp_path / "in"
    copy.mkdir()
    (copy / "weights.safetensors").write_bytes(source.read_bytes())
    (copy / "config.json").write_text(json.dumps(config))
    done = cli("convert", "in/weights.safetensors", "out", "--dtype", "bf16")
    assert done.code == 0, done.err
    assert "SanaTransformer2DModel" in done.out
    assert "bfloat16" in cli("inspect", "out").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.pth", "out"), "missing.pth"),
        (("missing.pth", "out", "--dtype", "int8"), "legal are fp32, bf16, fp16"),
    ],
)
def test_convert_refuses(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli("convert", *arguments)
    assert done.code == 1 and message in done.err and done.err.count("\n") == 1


def test_doctor_says_what_is_off(cli: Cli) -> None:
    done = cli("doctor")
    assert done.code in {0, 1}
    lines = done.out.splitlines()
    for subject in ("python", "torch", "auto means", "off", "cache folder", "embedded models"):
        assert any(line[2:].startswith(subject) for line in lines), subject
    (off,) = (line for line in lines if line[2:].startswith("off "))
    assert "GPU" in off or "cuda" in done.out


def test_doctor_fails_when_something_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = [Fact("a", "is there"), Fact("b", "is missing", ok=False)]
    monkeypatch.setattr(diagnostics, "report", lambda: facts)
    done = cli("doctor")
    assert done.code == 1
    assert done.out.splitlines()[1].startswith("! b")


def test_zoo(cli: Cli) -> None:
    listed = cli("zoo", "list")
    assert listed.code == 0 and "smollm2" in listed.out
    shown = cli("zoo", "show", "nothing")
    assert shown.code == 1 and "no embedded model" in shown.err


def test_licenses_are_three_statements(cli: Cli) -> None:
    text = " ".join(cli("licenses").out.split())
    for subject, statement in TERMS.items():
        assert f"{subject} {statement}" in text


def test_train_prints_a_resolved_recipe(cli: Cli) -> None:
    done = cli("train", "run", "emoji-ae", "train.seed=5", "--print-config")
    assert done.code == 0, done.err
    assert "seed: 5" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "run", "nothing"), "nothing"),
        (("train", "run", "emoji-ae", "train.sed=5", "--print-config"), "seed"),
        (("train", "data", "nothing"), "emoji"),
        (("train", "evaluate", "nothing", "--pack", "x"), "emoji"),
        (("train", "export", "nothing", "out"), "nothing"),
        (("train", "export", "nothing", "out", "--which", "worst"), "legal are best and latest"),
    ],
)
def test_train_refuses_in_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli(*arguments)
    assert done.code == 1 and message in done.err
    assert done.err.startswith("error: ") and done.err.count("\n") == 1


def test_a_missing_extra_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "yaml", None)
    for name in [name for name in sys.modules if name.startswith("sana_like_train")]:
        monkeypatch.delitem(sys.modules, name)
    done = cli("train", "run", "emoji-ae", "--print-config")
    assert done.code == 1
    assert "sana-like[train]" in done.err
