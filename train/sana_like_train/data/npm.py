"""Fetches npm packages by npm's own client, checked against pinned hashes."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class FetchError(RuntimeError):
    """A package could not be fetched, or is not the one that was pinned."""


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """One version of a package and the SHA-512 of its archive, base64 as npm writes it."""

    name: str
    version: str
    sha512: str

    @property
    def file_name(self) -> str:
        """Name that `npm pack` gives the archive."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"

    def matches(self, archive: Path) -> bool:
        """Say whether `archive` is a file with the pinned hash."""
        if not archive.is_file():
            return False
        with archive.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha512").digest()
        return base64.b64encode(digest).decode() == self.sha512


def fetch_packages(
    packages: Sequence[NpmPackage],
    folder: Path,
    report: Callable[[str], None] | None = None,
) -> dict[str, Path]:
    """Bring the archives of `packages` into `folder`; returns name -> path.

    Archives that are there and whole are kept, so a second call goes on where the first stopped.
    Raises `FetchError` where npm is missing or fails, or an archive differs from its pinned hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archives = {}
    for package in packages:
        path = folder / package.file_name
        if not package.matches(path):
            if report is not None:
                report(f"fetching {package.name} {package.version}")
            _fetch(package, path)
        archives[package.name] = path
    return archives


def read_members(archive: Path, wanted: Callable[[str], bool]) -> Mapping[str, bytes]:
    """Return the contents of the files whose path below `package/` is `wanted`."""
    contents = {}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            if member.isfile() and wanted(path):
                opened = tar.extractfile(member)
                assert opened is not None
                contents[path] = opened.read()
    return contents


def _fetch(package: NpmPackage, path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError(
            f"npm is needed to fetch {package.name}; install Node.js, or put {package.file_name} "
            f"into {path.parent}"
        )
    # In the same folder, so that the finished archive can be moved into place at once.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as temporary:
        wanted = f"{package.name}@{package.version}"
        command = [npm, "pack", wanted, "--ignore-scripts", "--pack-destination", temporary]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=temporary)
        fetched = Path(temporary) / package.file_name
        if done.returncode != 0 or not fetched.is_file():
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
            raise FetchError(f"npm pack {wanted} failed: {' '.join(last)}")
        if not package.matches(fetched):
            raise FetchError(
                f"the archive of {wanted} is not the one this version was built with (SHA-512 "
                "differs); it was not used"
            )
        fetched.replace(path)
