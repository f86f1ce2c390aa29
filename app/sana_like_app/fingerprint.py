"""A short name for the weights that made a picture, so that `rerun` knows them again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

WHOLE = 256 * 2**20
BLOCK = 64 * 2**10
BLOCKS = 256


def fingerprint(place: Path) -> str:
    """SHA-256 over the weights and settings in a folder, or over one file.

    Files are the safetensors and JSON files below `place`, by relative name, size and content.
    Of files above 256 MiB, 256 blocks of 64 KiB spread over the whole are read: training changes
    every block, and a published model of 10 GB is named in a moment. It tells models apart; it is
    no seal against someone who means to deceive.

    Raises:
        ValueError: nothing is there to read.
    """
    if place.is_file():
        files = [place]
    else:
        kinds = {".safetensors", ".json"}
        files = sorted(file for file in place.rglob("*") if file.suffix in kinds and file.is_file())
    if not files:
        raise ValueError(f"{str(place)!r} holds no weights")
    digest = hashlib.sha256()
    for file in files:
        name = "" if file == place else file.relative_to(place).as_posix()
        entry = [name, file.stat().st_size, _content(file)]
        digest.update(json.dumps(entry).encode())
    return digest.hexdigest()


def _content(file: Path) -> str:
    size = file.stat().st_size
    with file.open("rb") as handle:
        if size <= WHOLE:
            return hashlib.file_digest(handle, "sha256").hexdigest()
        digest = hashlib.sha256()
        for index in range(BLOCKS):
            handle.seek(index * (size - BLOCK) // (BLOCKS - 1))
            digest.update(handle.read(BLOCK))
        return digest.hexdigest()
