from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sana_like_train import checkpoint
from sana_like_train.config import ConfigError
from sana_like_train.running import run
from sana_like_train.tasks.base import TrainingTask


def _last(folder: Path) -> checkpoint.Checkpoint:
    path = checkpoint.find(folder / "checkpoints")
    assert path is not None
    return checkpoint.read(path)


def _assert_equal(one: checkpoint.Checkpoint, other: checkpoint.Checkpoint) -> None:
    assert one.tensors.keys() == other.tensors.keys()
    for group, tensors in one.tensors.items():
        assert tensors.keys() == other.tensors[group].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, other.tensors[group][name]), f"{group}: {name}"
    for state in (one.state, other.state):
        state["progress"].pop("seconds")
    assert one.state == other.state


@pytest.mark.parametrize("kind", ["autoencoder_recipe", "flow_recipe"])
def test_resume_is_bit_exact(
    kind: str,
    request: pytest.FixtureRequest,
    write_recipe: Callable[[dict[str, Any]], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = write_recipe(request.getfixturevalue(kind))
    seen: list[list[str]] = []
    for task in TrainingTask.__subclasses__():
        make = task.make_batch

        def recorded(self, position, make=make):
            batch = make(self, position)
            seen.append(batch.keys)
            return batch

        monkeypatch.setattr(task, "make_batch", recorded)
    whole = run(recipe, runs=tmp_path / "whole")
    order, seen[:] = list(seen), []
    # A limit of samples ends the first session in the middle; the schedule still spans 20 steps.
    first = run(recipe, ["train.max_samples=37"], runs=tmp_path / "parts")
    assert 8 <= first.progress.step <= 12
    torch.rand(7)  # generator states outside the run do not matter
    second = run(recipe, resume=True, runs=tmp_path / "parts")
    assert seen == order
    assert whole.status == second.status == "finished"
    _assert_equal(_last(whole.folder), _last(second.folder))


def test_a_run_is_not_overwritten_and_not_resumed_by_accident(
    autoencoder_recipe: dict[str, Any],
    write_recipe: Callable[[dict[str, Any]], Path],
    tmp_path: Path,
) -> None:
    recipe = write_recipe(autoencoder_recipe)
    short = ["train.max_steps=3"]
    with pytest.raises(ConfigError, match="no checkpoint to resume"):
        run(recipe, short, resume=True, runs=tmp_path)
    run(recipe, short, runs=tmp_path)
    with pytest.raises(ConfigError, match="--resume"):
        run(recipe, short, runs=tmp_path)


def test_resume_refuses_another_model(
    autoencoder_recipe: dict[str, Any],
    write_recipe: Callable[[dict[str, Any]], Path],
    tmp_path: Path,
) -> None:
    recipe = write_recipe(autoencoder_recipe)
    run(recipe, ["train.max_steps=3"], runs=tmp_path)
    with pytest.raises(checkpoint.CheckpointError, match="another model"):
        run(recipe, ["task.model.expand_ratio=3.0"], resume=True, runs=tmp_path)
    with pytest.raises(checkpoint.CheckpointError, match=r"without train\.ema|with train\.ema"):
        run(recipe, ["train.ema=null"], resume=True, runs=tmp_path)
    with pytest.raises(checkpoint.CheckpointError, match="not those it began with"):
        run(recipe, ["task.phase=decoder_refinement"], resume=True, runs=tmp_path)
