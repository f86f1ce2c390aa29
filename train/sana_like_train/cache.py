"""Decoded pictures kept in one memory-mapped file, so that a step never decodes."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from sana_like.folders import user_cache
from sana_like_train.data.records import Record

logger = logging.getLogger(__name__)


def cache_folder(configured: str | None) -> Path:
    """The configured cache folder, or the user's."""
    return Path(configured) if configured else user_cache()


def fingerprint(*parts: str) -> str:
    """Short hash of what a cached file depends on."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=10).hexdigest()


def square_rgba(record: Record, side: int) -> NDArray[np.uint8]:
    """A record's picture as `[side, side, 4]`: fitted, centred, transparent around."""
    image = record.open_image().convert("RGBA")
    if image.size == (side, side):
        return np.asarray(image)
    scale = side / max(image.size)
    width, height = (max(1, round(length * scale)) for length in image.size)
    # Colours under transparent pixels must not bleed into edges: scale with alpha multiplied in.
    image = image.convert("RGBa").resize((width, height), Image.Resampling.LANCZOS).convert("RGBA")
    square = Image.new("RGBA", (side, side))
    square.paste(image, ((side - width) // 2, (side - height) // 2))
    return np.asarray(square)


def picture_array(records: list[Record], side: int, folder: Path) -> NDArray[np.uint8]:
    """All pictures as `[N, side, side, 4]` RGBA, memory-mapped from a file built on first use.

    Where the folder cannot be written, the array is held in memory.
    """
    names = [f"{r.key}:{r.picture.path}:{r.picture.offset}:{r.picture.size}" for r in records]
    stamps = [str(Path(p).stat().st_mtime_ns) for p in sorted({r.picture.path for r in records})]
    path = folder / "pictures" / f"{fingerprint(str(side), *stamps, *names)}.npy"
    shape = (len(records), side, side, 4)
    if path.exists():
        return np.load(path, mmap_mode="r", allow_pickle=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.writing")
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
    except OSError as error:
        logger.warning("pictures are held in memory, %s cannot be written: %s", folder, error)
        return np.stack([square_rgba(record, side) for record in records])
    try:
        logger.info("decoding %d pictures into %s", len(records), path)
        for index, record in enumerate(records):
            array[index] = square_rgba(record, side)
        array.flush()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names and values, in the order of the names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        plain = tensor.detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name}:{tuple(plain.shape)}:".encode())
        digest.update(plain.numpy().data)
    return digest.hexdigest()


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes safetensors under a temporary name and renames it."""
    temporary = path.with_suffix(f".{os.getpid()}.writing")
    try:
        save_file(tensors, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Reads safetensors, memory-mapped."""
    return load_file(path)


def kept_tensor(path: Path, compute: Callable[[], Tensor], what: str) -> Tensor:
    """The tensor that a file holds, computed without gradients and written on first use.

    Args:
        path: of the file. Processes that want it at once compute it once.
        compute: makes the tensor.
        what: is encoded, for the log.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"), torch.no_grad():
        if not path.exists():
            logger.info("encoding %s into %s", what, path)
            write_tensors(path, {"flat": compute()})
    return read_tensors(path)["flat"]
