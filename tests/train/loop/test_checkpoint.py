from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from sana_like_train import checkpoint
from sana_like_train.checkpoint import Checkpoint, CheckpointError

WRITER = """
import sys, torch
from pathlib import Path
from sana_like_train import checkpoint
folder = Path(sys.argv[1])
for step in range(1, 100000):
    tensors = {"model": {"w": torch.full((200_000,), float(step))}}
    contents = checkpoint.Checkpoint(tensors, {"step": step})
    checkpoint.write(folder, f"step-{step:08d}", contents, {})
    checkpoint.prune(folder, 2)
    print(step, flush=True)
"""


def _write(folder: Path, step: int) -> Path:
    contents = Checkpoint({"model": {"w": torch.full((4,), float(step))}}, {"step": step})
    return checkpoint.write(folder, f"step-{step:08d}", contents, {"recipe.yaml": "name: x\n"})


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_kill_while_writing_leaves_the_previous_one_loadable(tmp_path: Path) -> None:
    for delay in (0.0, 0.013, 0.031):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        announced = int(rest[-1]) if rest else 3
        path = checkpoint.find(tmp_path)
        assert path is not None
        contents = checkpoint.read(path)
        step = contents.state["step"]
        assert step >= announced
        assert torch.equal(contents.tensors["model"]["w"], torch.full((200_000,), float(step)))
        checkpoint.clean(tmp_path)
        assert not list(tmp_path.glob(".writing-*"))


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    path = _write(tmp_path, 1)
    file = path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        checkpoint.read(path)
    file.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        checkpoint.read(path)
    (path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="manifest"):
        checkpoint.read(path)


def test_a_folder_without_manifest_does_not_count(tmp_path: Path) -> None:
    first = _write(tmp_path, 1)
    second = _write(tmp_path, 2)
    assert (tmp_path / "latest").read_text().strip() == second.name
    (second / "manifest.json").unlink()
    assert checkpoint.find(tmp_path) == first


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in range(1, 7):
        _write(tmp_path, step)
        if step == 2:
            checkpoint.point(tmp_path, "best", "step-00000002")
        checkpoint.prune(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == [
        "step-00000002",
        "step-00000005",
        "step-00000006",
    ]
    assert checkpoint.find(tmp_path, "best") == tmp_path / "step-00000002"


def test_a_checkpoint_is_replaced_whole(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    contents = Checkpoint({"other": {"v": torch.zeros(1)}}, {"step": 1})
    path = checkpoint.write(tmp_path, "step-00000001", contents, {})
    assert {p.name for p in path.iterdir()} == {
        "other.safetensors",
        "state.json",
        "manifest.json",
    }
    assert json.loads((path / "manifest.json").read_text())["sha256"].keys() == {
        "other.safetensors",
        "state.json",
    }


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    with pytest.raises(TypeError):
        checkpoint.write(tmp_path, "step-00000002", Checkpoint({}, {"bad": object()}), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000001"]


def test_optimizer_state_keeps_the_memory_layout_of_its_parameters() -> None:
    """Fused kernels walk weight, gradient and moments in memory order."""

    def trained() -> tuple[nn.Conv2d, AdamW]:
        torch.manual_seed(0)
        conv = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
        return conv, AdamW(conv.parameters(), lr=0.1, fused=True)

    def step(conv: nn.Conv2d, optimizer: AdamW, seed: int) -> None:
        torch.manual_seed(seed)
        conv(torch.randn(2, 4, 8, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    conv, optimizer = trained()
    step(conv, optimizer, 1)
    tensors, plain = checkpoint.flatten_optimizer(optimizer)
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    resumed, fresh = trained()
    resumed.load_state_dict(conv.state_dict())
    checkpoint.restore_optimizer(fresh, tensors, json.loads(json.dumps(plain)))
    for seed in (2, 3):
        step(conv, optimizer, seed)
        step(resumed, fresh, seed)
    assert torch.equal(conv.weight, resumed.weight)


def test_optimizer_state_of_other_parameters_is_refused() -> None:
    optimizer = AdamW([nn.Parameter(torch.zeros(3))], lr=0.1)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step()
    tensors, plain = checkpoint.flatten_optimizer(optimizer)
    with pytest.raises(CheckpointError, match="optimises 1 tensors, this recipe 2"):
        two = AdamW([nn.Parameter(torch.zeros(3)) for _ in range(2)], lr=0.1)
        checkpoint.restore_optimizer(two, tensors, plain)
    with pytest.raises(CheckpointError, match="shape"):
        checkpoint.restore_optimizer(AdamW([nn.Parameter(torch.zeros(4))]), tensors, plain)
