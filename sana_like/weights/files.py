"""Small files beside the weights: strict JSON, atomic writing."""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any

from sana_like.weights.errors import WeightsError

# A 60-layer model's index is 0.2 MB. The limits bound what a hostile file can make a parser hold.
JSON_LIMIT = 8 * 2**20


def regular_file_size(path: Path) -> int:
    """Size of `path` in bytes.

    Raises:
        WeightsError: the path is missing, a folder, or no regular file (a pipe would block).
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    if not S_ISREG(status.st_mode):
        kind = "a folder" if path.is_dir() else "no regular file"
        raise WeightsError(f"{path}: expected a file, found {kind}.")
    return status.st_size


def parse_json_object(text: bytes, where: str) -> dict[str, Any]:
    """Parse `text` as one JSON object without duplicate keys, NaN or infinity.

    Raises:
        WeightsError: with `where` in front, when the text is anything else.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise ValueError(f"the key {twice!r} occurs twice")
        return result

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        decoded = text.decode("utf-8-sig")
        value = json.loads(decoded, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise WeightsError(f"{where}: expected a JSON object, found {type(value).__name__}.")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from `path`; see `parse_json_object`.

    Raises:
        WeightsError: unreadable, larger than 8 MiB, or not a JSON object.
    """
    size = regular_file_size(path)
    if size > JSON_LIMIT:
        raise WeightsError(f"{path}: {size} bytes; a JSON file here has at most {JSON_LIMIT}.")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    return parse_json_object(text, str(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`; on success it takes the place of `path`, else it goes.

    A reader sees the old file or the new one, never a part.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write `value` to `path` atomically: sorted keys, two spaces, a final line feed."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
