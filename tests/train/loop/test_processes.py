from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sana_like_train import checkpoint
from sana_like_train.running import run

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.mark.slow
def test_two_processes_train_what_one_trains_with_twice_the_batch(
    autoencoder_recipe: dict[str, Any],
    write_recipe: Callable[[dict[str, Any]], Path],
    tmp_path: Path,
) -> None:
    off = {"latent_noise": 0.0, "adversary": None, "crop_schedule": []}
    autoencoder_recipe["task"] |= {**off, "crop": None, "white_background": 1.0}
    recipe = write_recipe(autoencoder_recipe)
    common = ["train.max_steps=4", "train.evaluate_steps=4", "train.schedule.warmup_steps=0"]
    one = run(recipe, [*common, "train.batch_size=4"], runs=tmp_path / "one")
    arguments = [str(recipe), *common, "train.batch_size=2", "--runs", str(tmp_path / "two")]
    done = subprocess.run(
        [sys.executable, *TORCHRUN, "-m", "sana_like_train", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [checkpoint.find(f / "checkpoints") for f in (one.folder, tmp_path / "two" / "tiny-ae")]
    contents = [checkpoint.read(path, ("model",)) for path in found if path]
    assert [c.state["progress"]["samples"] for c in contents] == [16, 16]
    first, second = (c.tensors["model"] for c in contents)
    for name, value in first.items():
        # Adam divides by the gradient's size, so tiny gradients turn rounding into steps.
        assert torch.allclose(value, second[name], atol=3e-4), name
