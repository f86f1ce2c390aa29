"""The script for GPU machines, on a CPU at sizes that only try it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu")


def run(gpu, capsys, tmp_path, *options):
    path = tmp_path / "results.json"
    given = ["--device", "cpu", "--tiny", "--compiler", "eager", "--output", str(path)]
    status = gpu.main([*given, *options])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert found == json.loads(path.read_text())
    return status, found, lines


def test_everything(gpu, capsys, tmp_path):
    pytest.importorskip("triton")
    status, found, lines = run(gpu, capsys, tmp_path, "--dtype", "float32")
    assert found["wrong"] == [] and status == 0
    assert {row["backend"] for row in found["kernels"]} == {"triton"}
    assert all(row["timing"]["median"] > 0 for row in found["kernels"])
    names = [row["name"] for row in found["denoise"]]
    assert names == ["diffusers", "diffusers compiled", "sana_like", "sana_like compiled"]
    for row in found["denoise"]:
        assert len(row["runs"]) == 2 and row["error"] <= 1e-5 and row["seconds"] > 0
    assert any(line.startswith(("reached", "missed")) for line in lines)
    assert found["machine"]["torch"] == torch.__version__


def test_wrong_numbers_are_refused_and_told(gpu, capsys, tmp_path, monkeypatch):
    import gpu_denoise

    right = gpu_denoise.Denoise.sana_like
    monkeypatch.setattr(
        gpu_denoise.Denoise, "sana_like", lambda self, *rest: right(self, *rest) * 1.01
    )
    status, found, lines = run(gpu, capsys, tmp_path, "--part", "denoise")
    assert status == 1
    rows = {row["name"]: row for row in found["denoise"]}
    assert rows["diffusers"]["seconds"] > 0 and rows["sana_like"]["seconds"] is None
    assert "wrong numbers" in rows["sana_like"]["refused"] and len(found["wrong"]) == 2
    assert not any("times faster" in line for line in lines)


def test_what_fails_does_not_take_the_rest_with_it(gpu, capsys, tmp_path, monkeypatch):
    import gpu_denoise

    def broken(*_):
        raise RuntimeError("no compiler here\nat all")

    monkeypatch.setattr(gpu_denoise.Denoise, "diffusers", broken)
    status, found, _ = run(gpu, capsys, tmp_path, "--part", "denoise")
    assert status == 1 and found["wrong"] == ["RuntimeError: no compiler here\nat all"]


def test_no_time_left_is_said(gpu, capsys, tmp_path):
    _, found, _ = run(gpu, capsys, tmp_path, "--minutes", "0")
    assert "denoise" in found["not_begun"] and found["kernels"] == []


def test_rows_for_the_table(gpu, capsys, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    calls = iter(range(10**6))
    monkeypatch.setattr(gpu.Benchmark, "enough", lambda self: next(calls) > 4)
    status, found, _ = run(gpu, capsys, tmp_path, "--tune", "--kernel", "row")
    assert status == 0 and found["rows"][0]["row"].startswith("_row(128, 4, ")
    assert found["machine"]["date"] in found["rows"][0]["row"]


def test_a_missing_gpu_is_an_error(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "unavailable", lambda kind: "torch sees no GPU")
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        gpu.main([])


def test_numbers_that_json_lacks_become_null(gpu):
    nan, inf = float("nan"), float("inf")
    assert gpu.finite({"a": [nan, 1.5, (inf, "x")]}) == {"a": [None, 1.5, [None, "x"]]}
