"""Writing a model folder: safetensors in one file or in shards, then the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sana_like.weights.errors import WeightsError
from sana_like.weights.files import replacing, write_json
from sana_like.weights.int8 import pack_int8
from sana_like.weights.strict import WEIGHTS_STEM, listing


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` to `path` atomically, with `metadata` in the header."""
    from safetensors.torch import save_file

    ready = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(ready, temporary, metadata={"format": "pt", **(metadata or {})})


def write_folder(
    folder: Path,
    state_dict: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    variant: str | None = None,
    max_shard_size: int | str = "10GB",
    int8: bool = False,
) -> None:
    """Write a model folder in diffusers' layout; arguments as in `StrictModel.save_pretrained`.

    Raises:
        WeightsError: `folder` is a file, or the state dict is not that of a plain model.
    """
    from huggingface_hub import split_torch_state_dict_into_shards

    if folder.exists() and not folder.is_dir():
        raise WeightsError(f"{folder}: expected a folder to write to, found a file.")
    attached = [key for key in state_dict if ".base_layer." in key or ".lora_" in key]
    if attached:
        raise WeightsError(
            f"{len(attached)} tensors belong to an attached LoRA ({listing(attached)}); fuse or "
            "unload it before saving."
        )
    folder.mkdir(parents=True, exist_ok=True)
    part = f".{variant}" if variant else ""
    index = folder / f"{WEIGHTS_STEM}.safetensors.index{part}.json"
    if int8:
        packed, metadata = pack_int8(state_dict)
        name = f"{WEIGHTS_STEM}{part}.safetensors"
        index.unlink(missing_ok=True)
        write_safetensors(folder / name, packed, metadata)
        written = {name}
    else:
        split = split_torch_state_dict_into_shards(
            dict(state_dict),
            filename_pattern=f"{WEIGHTS_STEM}{part}{{suffix}}.safetensors",
            max_shard_size=max_shard_size,
        )
        # Without its index a half replaced set of shards is refused instead of mixed.
        index.unlink(missing_ok=True)
        for name, keys in split.filename_to_tensors.items():
            write_safetensors(folder / name, {key: state_dict[key] for key in keys})
        if split.is_sharded:
            names = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            write_json(index, names)
        written = set(split.filename_to_tensors)
    write_json(folder / "config.json", dict(config))
    _remove_stale(folder, part, written)


def _remove_stale(folder: Path, part: str, written: set[str]) -> None:
    """Remove weights that an earlier save of the same variant left under other names."""
    stem = re.escape(f"{WEIGHTS_STEM}{part}")
    stale = re.compile(stem + r"(-\d{5}-of-\d{5})?\.safetensors")
    for path in folder.iterdir():
        if stale.fullmatch(path.name) and path.name not in written:
            path.unlink()
