"""The header of a safetensors file, checked in full before a tensor is touched.

A file is eight bytes (little-endian length of the header), a JSON header that gives each tensor's
type, shape and byte range, then the tensors without gaps. Every rule of the format is checked here
because the file may come from anywhere: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sana_like.weights.errors import WeightsError
from sana_like.weights.files import JSON_LIMIT, parse_json_object, regular_file_size

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
PICKLE_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle")
_MAX_DIMS = 8
_MAX_DIM = 2**31
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies: `dtype`, `shape`, and its byte range in the file at `path`."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    path: Path
    start: int
    nbytes: int


@dataclass(frozen=True)
class FileHeader:
    """What one safetensors file says about itself."""

    path: Path
    size: int
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]


def read_header(path: Path) -> FileHeader:
    """Read and check the header of the safetensors file at `path`; no tensor is read.

    Raises:
        WeightsError: not a regular file, a pickle, another format under this name, cut, too long,
            or with a header that contradicts itself or the size of the file. The message gives the
            expected and the found size.
    """
    refuse_pickle_name(path)
    size = regular_file_size(path)
    try:
        with path.open("rb") as handle:
            head = handle.read(512)
            length = int.from_bytes(head[:_LENGTH_BYTES], "little")
            end = _LENGTH_BYTES + length
            problem = _foreign_format(head, size)
            if problem is None and size < _LENGTH_BYTES:
                problem = "expected at least 8 bytes of header length; the download was cut"
            if problem is None and not 2 <= length <= JSON_LIMIT:
                problem = f"its first 8 bytes give a header of {length} bytes, which no file has"
            if problem is None and end > size:
                problem = f"expected at least {end} bytes; the file was cut inside its header"
            if problem is not None:
                raise WeightsError(f"{path}: not usable as safetensors, {size} bytes: {problem}.")
            handle.seek(_LENGTH_BYTES)
            raw = handle.read(length)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    entries = parse_json_object(raw.rstrip(b" "), f"{path} (safetensors header)")
    metadata = _check_metadata(entries.pop("__metadata__", {}), path)
    tensors = {key: _parse_entry(key, entry, path, end) for key, entry in entries.items()}
    _check_ranges(tensors, path, size, end)
    return FileHeader(path, size, tensors, metadata)


def refuse_pickle_name(path: Path) -> None:
    """Raise `WeightsError` if `path` is named like a pickle, which can run code when loaded."""
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise WeightsError(
            f"{path}: pickled weights ({path.suffix}) can run code and are never loaded. "
            f"Convert them once, in a separate process: sana-like convert {path} FOLDER"
        )


def _foreign_format(head: bytes, size: int) -> str | None:
    """Say which other kind of file begins like this, and the remedy; None for safetensors."""
    text = head.lstrip().lower()
    if size == 0:
        return "the file is empty; download it again"
    if head.startswith(b"version https://git-lfs"):
        wanted = re.search(rb"size (\d{1,18})", head)
        expected = f" of {wanted[1].decode()} bytes" if wanted else ""
        return f"it is a Git LFS pointer to a file{expected}; run `git lfs pull` in its folder"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")):
        return "it is a web page saved under this name; download the file itself"
    if head.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")) and (
        # A header of 0x02_80 bytes starts like a pickle, but then an object opens at byte 8.
        head[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{"
    ):
        return (
            "it is a pickle or zip archive under this name, which can run code; "
            "convert it with `sana-like convert`, or get the safetensors file"
        )
    if head.startswith(b"GGUF"):
        return "it is a GGUF file under this name; safetensors is read here"
    return None


def _check_metadata(value: Any, path: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise WeightsError(f"{path}: the header's __metadata__ must map strings to strings.")
    return value


def _parse_entry(key: str, entry: Any, path: Path, data_start: int) -> TensorInfo:
    where = f"{path}: tensor {key!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WeightsError(f"{where}: its header entry needs dtype, shape and data_offsets only.")
    name, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(name, str) or name not in DTYPES:
        raise WeightsError(f"{where}: unknown dtype {name!r}; known: {', '.join(DTYPES)}.")
    if not _is_int_list(shape) or len(shape) > _MAX_DIMS or any(d >= _MAX_DIM for d in shape):
        raise WeightsError(f"{where}: impossible shape {str(shape)[:80]}.")
    if not _is_int_list(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise WeightsError(f"{where}: impossible data_offsets {str(offsets)[:80]}.")
    dtype = DTYPES[name]
    nbytes = offsets[1] - offsets[0]
    expected = math.prod(shape) * dtype.itemsize
    if nbytes != expected:
        raise WeightsError(
            f"{where}: shape {shape} of {name} needs {expected} bytes, the header gives {nbytes}."
        )
    return TensorInfo(dtype, tuple(shape), path, data_start + offsets[0], nbytes)


def _is_int_list(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_ranges(tensors: Mapping[str, TensorInfo], path: Path, size: int, start: int) -> None:
    """The tensors must fill the rest of the file: no gap, no overlap, nothing after them."""
    position = start
    for key, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if info.start != position:
            raise WeightsError(
                f"{path}: tensor {key!r} begins at byte {info.start}, expected {position}: "
                "the header's ranges overlap or leave a gap."
            )
        position += info.nbytes
    if size != position:
        state = "cut short" if size < position else "followed by foreign bytes"
        raise WeightsError(
            f"{path}: its header promises {position} bytes, found {size}: the file is {state}. "
            "Download it again."
        )
