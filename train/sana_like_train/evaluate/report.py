"""What every report says of itself: when, on which machine, of which weights."""

from __future__ import annotations

import hashlib
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from sana_like.version import __version__
from sana_like.weights.files import read_json, replacing
from sana_like.weights.hub import resolve_folder


def weights_sha256(folder: Path) -> str:
    """Return one SHA-256 over all `.safetensors` below `folder`: their names and contents.

    Raises `ValueError` where there are none.
    """
    files = sorted(folder.rglob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no .safetensors; it is not a saved model")
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0")
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def provenance(folders: dict[str, Path], device: torch.device | str) -> dict[str, Any]:
    """Return date, machine, versions, and the hash of the weights in each of `folders`."""
    kind = torch.device(device).type
    if kind == "cuda":
        processor = torch.cuda.get_device_name(device)
    else:
        processor = (
            f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
        )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}; {kind}: {processor}",
        "versions": {"sana-like": __version__, "torch": torch.__version__},
        "weights_sha256": {name: weights_sha256(folder) for name, folder in folders.items()},
    }


def model_sources(folder: Path, device: torch.device | str) -> dict[str, Any]:
    """Return `provenance` of a pipeline, and of an embedded autoencoder that it only names."""
    folders = {"pipeline": folder}
    part = read_json(folder / "model_index.json").get("vae")
    if isinstance(part, list) and part and part[0] == "sana_like.zoo":
        folders["autoencoder"] = resolve_folder(part[1])
    return provenance(folders, device)


def save_png(picture: Image.Image, path: Path) -> None:
    """Write `picture` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        picture.save(temporary, format="PNG")
