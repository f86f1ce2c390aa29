"""From a name to a folder on this machine: embedded name, then folder, then Hugging Face id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sana_like.weights.errors import WeightsError

ZOO = Path(__file__).parent.parent / "zoo"
_EMBEDDED_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def embedded_names() -> list[str]:
    """Names of the models that come with the package."""
    if not ZOO.is_dir():
        return []
    marks = ("model_index.json", "config.json")
    return sorted(
        folder.name for folder in ZOO.iterdir() if any((folder / mark).is_file() for mark in marks)
    )


def resolve_folder(
    name_or_path: str | Path,
    *,
    allow_patterns: Sequence[str] | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
    cache_dir: str | Path | None = None,
) -> Path:
    """Find the folder that `name_or_path` means.

    An embedded name wins over a folder, a folder over a hub id. Only a hub id may use the network.

    Args:
        name_or_path: embedded name, folder, or `owner/name` on the Hugging Face hub.
        allow_patterns: which files of a hub repository are fetched; None means all.
        revision: branch, tag or commit of a hub repository.
        local_files_only: take a hub repository from the cache of an earlier download only.
        cache_dir: where hub files are kept; None means the hub library's own place.

    Raises:
        WeightsError: the name means nothing here, or the hub cannot give the files.
    """
    name = str(name_or_path)
    if _EMBEDDED_NAME.fullmatch(name) and name in embedded_names():
        return ZOO / name
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder
    if folder.is_file():
        raise WeightsError(f"{folder}: expected a folder in diffusers' layout, found a file.")
    if not _HUB_ID.fullmatch(name):
        raise WeightsError(
            f"{name!r} is no embedded model ({', '.join(embedded_names()) or 'none installed'}), "
            "no folder, and no hub id of the form owner/name."
        )
    return _fetch(name, allow_patterns, revision, local_files_only, cache_dir)


def _fetch(
    repository: str,
    allow_patterns: Sequence[str] | None,
    revision: str | None,
    local_files_only: bool,
    cache_dir: str | Path | None,
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=None if allow_patterns is None else list(allow_patterns),
            local_files_only=local_files_only,
            cache_dir=cache_dir,
        )
    except LocalEntryNotFoundError as error:
        remedy = (
            "it is not in the local cache; allow the network once, or download it beforehand"
            if local_files_only
            else "the hub cannot be reached and it is not in the local cache"
        )
        raise WeightsError(f"{repository!r}: no such folder, and as a hub id {remedy}.") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise WeightsError(f"{repository!r}: cannot be fetched from the hub: {error}") from error
    return Path(path)
