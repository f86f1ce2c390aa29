"""A strict reader of safetensors: one file, or the shards that an index names.

Everything that can be wrong with the files is found from their headers, before a tensor is read;
tensors are then read one at a time into fresh memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from sana_like.weights.errors import WeightsError
from sana_like.weights.files import read_json
from sana_like.weights.header import (
    PICKLE_SUFFIXES,
    FileHeader,
    TensorInfo,
    read_header,
    refuse_pickle_name,
)
from sana_like.weights.int8 import INT8_METADATA, SCALE_SUFFIX, unpack_int8

WEIGHTS_STEM = "diffusion_pytorch_model"
_NAMED = 8  # keys or names that a message lists before it says "and n more"


class WeightsReader:
    """The tensors of one published set of weights, by key.

    `tensors` maps each key to type, shape and place. Weights stored as int8 appear, and are read,
    as the fp32 tensors they stand for.
    """

    def __init__(self, source: Path, files: Sequence[FileHeader]) -> None:
        self.source = source
        self.files = tuple(files)
        self.tensors: dict[str, TensorInfo] = {}
        self._scales: dict[str, TensorInfo] = {}
        owners: dict[str, Path] = {}
        for file in files:
            for key, info in _unpacked_view(file, self._scales).items():
                if key in owners:
                    raise WeightsError(
                        f"{source}: the tensor {key!r} is in two files, {owners[key].name} and "
                        f"{file.path.name}. Remove the stale one."
                    )
                owners[key] = file.path
                self.tensors[key] = info

    @classmethod
    def open(cls, path: Path) -> WeightsReader:
        """Open a `.safetensors` file or a `.safetensors.index*.json` file.

        Raises:
            WeightsError: a file is broken or of another format, the index names a file outside its
                folder, or index and shards disagree.
        """
        if path.suffix == ".json":
            return cls(path, _open_shards(path))
        return cls(path, [read_header(path)])

    def read(self, key: str) -> Tensor:
        """Read one tensor to the CPU."""
        info = self.tensors[key]
        scale = self._scales.get(key)
        if scale is None:
            return _read_tensor(info)
        return unpack_int8(_read_tensor(replace(info, dtype=torch.int8)), _read_tensor(scale))

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Read all tensors, one after the other, in the order they lie on disk."""
        for key in self.tensors:
            yield key, self.read(key)


def find_weights(folder: Path, variant: str | None = None) -> Path:
    """The weights of the model folder `folder`: an index if there is one, else the single file.

    Args:
        folder: a folder in diffusers' layout.
        variant: the part before `.safetensors` in names such as `...model.fp16.safetensors`.

    Raises:
        WeightsError: there are none; the message lists what the folder holds instead.
    """
    part = f".{variant}" if variant else ""
    index = folder / f"{WEIGHTS_STEM}.safetensors.index{part}.json"
    single = folder / f"{WEIGHTS_STEM}{part}.safetensors"
    for path in (index, single):
        if path.exists():
            return path
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        if name.endswith(PICKLE_SUFFIXES):
            refuse_pickle_name(folder / name)
    others = [name for name in names if ".safetensors" in name]
    hint = f" Found {listing(others)}; choose one with variant=..." if others else ""
    raise WeightsError(f"{folder}: expected {single.name} or {index.name}, found neither.{hint}")


def listing(names: Sequence[str], limit: int = _NAMED) -> str:
    """`a, b, c and 12 more`: names for a message."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _unpacked_view(file: FileHeader, scales: dict[str, TensorInfo]) -> Mapping[str, TensorInfo]:
    """Hide the scales of int8 weights and show these as fp32; `scales` gets key -> scale."""
    if not INT8_METADATA.items() <= file.metadata.items():
        return file.tensors
    view: dict[str, TensorInfo] = {}
    for key, info in file.tensors.items():
        scale = file.tensors.get(key + SCALE_SUFFIX)
        if scale is not None:
            fits = info.dtype == torch.int8 and scale.dtype == torch.float32
            if not fits or scale.shape != info.shape[:1]:
                raise WeightsError(
                    f"{file.path}: int8 weight {key!r} {list(info.shape)} of {info.dtype} does not "
                    f"fit its scale {list(scale.shape)} of {scale.dtype}."
                )
            scales[key] = scale
            view[key] = replace(info, dtype=torch.float32)
        elif not (key.endswith(SCALE_SUFFIX) and key.removesuffix(SCALE_SUFFIX) in file.tensors):
            view[key] = info
    return view


def _read_tensor(info: TensorInfo) -> Tensor:
    data = torch.empty(info.nbytes, dtype=torch.uint8)
    try:
        with info.path.open("rb") as handle:
            handle.seek(info.start)
            found = handle.readinto(data.numpy().data) if info.nbytes else 0
    except OSError as error:
        raise WeightsError(f"{info.path}: cannot be read: {error}") from error
    if found != info.nbytes:
        raise WeightsError(f"{info.path}: changed while it was read; load it again.")
    return data.view(info.dtype).view(info.shape)


def _open_shards(index: Path) -> list[FileHeader]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index}: expected a non-empty weight_map of tensor keys to files.")
    by_name: dict[str, set[str]] = {}
    for key, name in weight_map.items():
        if not isinstance(name, str):
            raise WeightsError(f"{index}: tensor {key!r} names {name!r}, which is no file name.")
        by_name.setdefault(name, set()).add(key)
    paths = {name: _shard_path(index, name) for name in by_name}
    absent = [name for name, path in paths.items() if not path.exists()]
    if absent:
        raise WeightsError(
            f"{index}: {len(absent)} of {len(paths)} shards are missing: {listing(absent)}. "
            "Download them again."
        )
    headers = []
    for name, keys in by_name.items():
        header = read_header(paths[name])
        if keys != set(header.tensors):
            lost, extra = sorted(keys - set(header.tensors)), sorted(set(header.tensors) - keys)
            raise WeightsError(
                f"{index}: disagrees with {name}: {len(lost)} tensors promised but absent "
                f"({listing(lost)}), {len(extra)} present but not promised ({listing(extra)})."
            )
        headers.append(header)
    return headers


def _shard_path(index: Path, name: str) -> Path:
    """The shard `name` of `index`; only a plain file name inside the same folder is accepted."""
    plain = name.endswith(".safetensors") and not any(char in name for char in "/\\:\0")
    path = index.parent / name
    if plain:
        target = path.resolve()
        if any(target.is_relative_to(home) for home in _allowed_homes(index.parent.resolve())):
            return path
    raise WeightsError(
        f"{index}: names {name!r}, which is not a safetensors file in the same folder. "
        "An index may not point outside its folder; do not use weights that try."
    )


def _allowed_homes(folder: Path) -> Iterator[Path]:
    """The folder itself, and the store to which files of a Hugging Face cache snapshot link."""
    yield folder
    for parent in folder.parents:
        if parent.name == "snapshots":
            yield parent.parent / "blobs"
