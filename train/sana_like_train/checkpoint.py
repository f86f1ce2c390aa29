"""Checkpoints that are whole or absent.

A checkpoint is a folder `step-00001200` with safetensors, `state.json` and, written last,
`manifest.json` with the SHA-256 of every file. It is built under a temporary name, flushed to
disk and renamed; `latest` and `best` are text files that name one. A process killed at any moment
leaves the previous checkpoint loadable.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from sana_like_train.cache import tensors_hash

_TEMPORARY = ".writing-"


class CheckpointError(ValueError):
    """A checkpoint that is missing, incomplete or damaged."""


@dataclass
class Checkpoint:
    """Contents of one checkpoint: groups of tensors by file, and plain state."""

    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def write(folder: Path, name: str, checkpoint: Checkpoint, texts: dict[str, str]) -> Path:
    """Writes `folder/name` atomically and points `latest` at it.

    Args:
        folder: of all checkpoints of the run.
        name: of this one.
        checkpoint: its contents; one `.safetensors` per group.
        texts: further files, as the recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clean(folder)
    target = folder / name
    work = folder / f"{_TEMPORARY}{name}-{os.getpid()}"
    work.mkdir()
    try:
        for group, tensors in checkpoint.tensors.items():
            whole = {key: value.detach().contiguous() for key, value in tensors.items()}
            save_file(whole, work / f"{group}.safetensors")
        texts = {**texts, "state.json": json.dumps(checkpoint.state, indent=1)}
        for file, text in texts.items():
            (work / file).write_text(text, encoding="utf-8")
        hashes = {path.name: _flushed_hash(path) for path in sorted(work.iterdir())}
        (work / "manifest.json").write_text(json.dumps({"sha256": hashes}, indent=1))
        _flushed_hash(work / "manifest.json")
        _flush_folder(work)
        if target.exists():
            target.rename(folder / f"{_TEMPORARY}old-{name}-{os.getpid()}")
        work.rename(target)
        _flush_folder(folder)
        point(folder, "latest", name)
    finally:
        clean(folder)
    return target


def point(folder: Path, pointer: str, name: str) -> None:
    """Makes the pointer file (`latest` or `best`) name a checkpoint, atomically."""
    temporary = folder / f"{_TEMPORARY}{pointer}"
    temporary.write_text(name + "\n", encoding="utf-8")
    _flushed_hash(temporary)
    temporary.replace(folder / pointer)
    _flush_folder(folder)


def find(folder: Path, which: str = "latest") -> Path | None:
    """The `latest` or `best` checkpoint of a folder; none if there is none.

    The newest complete folder is the latest one even where a kill came before the pointer moved.
    """
    complete = _complete(folder)
    if which == "latest":
        return complete[-1] if complete else None
    pointer = folder / which
    if not pointer.exists():
        return None
    named = folder / pointer.read_text(encoding="utf-8").strip()
    return named if named in complete else None


def read(path: Path, groups: tuple[str, ...] | None = None) -> Checkpoint:
    """Reads a checkpoint after checking the hash of every file read.

    Args:
        path: its folder.
        groups: names of the tensor groups wanted; all if none.

    Raises:
        CheckpointError: no manifest, a file missing or with another hash.
    """
    try:
        hashes = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} has no usable manifest.json: {error}") from None
    tensors = {}
    for name, expected in hashes.items():
        file = path / name
        group = file.stem if file.suffix == ".safetensors" else None
        if group and groups is not None and group not in groups:
            continue
        if not file.exists():
            raise CheckpointError(f"{file} is missing; use another checkpoint of {path.parent}")
        if _hash(file) != expected:
            raise CheckpointError(
                f"{file} is damaged (SHA-256 differs from the manifest); use another checkpoint "
                f"of {path.parent}: {', '.join(p.name for p in _complete(path.parent))}"
            )
        if group:
            tensors[group] = load_file(file)
    return Checkpoint(tensors, json.loads((path / "state.json").read_text(encoding="utf-8")))


def prune(folder: Path, keep_last: int) -> None:
    """Removes all but the newest `keep_last` checkpoints and the best one."""
    best = find(folder, "best")
    for old in _complete(folder)[:-keep_last]:
        if old != best:
            (old / "manifest.json").unlink()  # no longer complete before anything else goes
            shutil.rmtree(old)


def clean(folder: Path) -> None:
    """Removes what an interrupted write left behind."""
    for path in folder.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _complete(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("step-*/manifest.json"))


def flatten_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Splits an optimiser's state into tensors (`INDEX.NAME`) and JSON-able values."""
    state = optimizer.state_dict()
    tensors, values = {}, {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                values[f"{index}.{name}"] = value
    return tensors, {"values": values, "param_groups": state["param_groups"]}


def restore_optimizer(
    optimizer: Optimizer, tensors: dict[str, Tensor], plain: dict[str, Any]
) -> None:
    """Puts flattened state back into an optimiser over the same parameters.

    Tensors get the memory layout of their parameter: fused kernels walk all of them in memory
    order.

    Raises:
        CheckpointError: the parameters differ in number or shape.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    saved = sum(len(group["params"]) for group in plain["param_groups"])
    if saved != len(parameters):
        raise CheckpointError(
            f"the checkpoint optimises {saved} tensors, this recipe {len(parameters)}; "
            "resume with the recipe of the run, or start a new run with train.init_from"
        )
    state: dict[int, dict[str, Any]] = {}
    for key, saved_value in {**plain["values"], **tensors}.items():
        index, _, name = key.partition(".")
        value, parameter = saved_value, parameters[int(index)]
        if isinstance(value, Tensor) and value.ndim:
            if value.shape != parameter.shape:
                raise CheckpointError(
                    f"optimiser state {key} has shape {tuple(value.shape)}, its parameter "
                    f"{tuple(parameter.shape)}"
                )
            value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flushed_hash(path: Path) -> str:
    with path.open("r+b") as file:  # Windows flushes only what is open for writing
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be flushed there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """State dict without the parameters that are not trained."""
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    return {name: t for name, t in module.state_dict().items() if name not in frozen}


def frozen_hash(module: nn.Module) -> str:
    """SHA-256 of the parameters that are not trained; empty where all are."""
    frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
    return tensors_hash(frozen) if frozen else ""


def load_into(module: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Copies what `trained_state` gave back into a module.

    Raises:
        CheckpointError: a missing, extra or misshapen tensor.
    """
    own = trained_state(module)
    wrong = sorted(set(own) ^ set(tensors)) or [n for n in own if own[n].shape != tensors[n].shape]
    if wrong:
        raise CheckpointError(
            f"{source} is of another model than the recipe's; {len(wrong)} tensors are missing, "
            f"extra or misshapen, first {wrong[0]}; resume with {source / 'recipe.yaml'}"
        )
    module.load_state_dict(tensors, strict=False)
