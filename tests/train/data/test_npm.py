from __future__ import annotations

import base64
import hashlib
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from sana_like_train.data.npm import FetchError, NpmPackage, fetch_packages, read_members


def archive(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def pinned(content: bytes) -> NpmPackage:
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    return NpmPackage("@set/icons", "1.2.3", digest)


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for npm that copies `served` and counts its calls in `calls`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "npm"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> "{folder}/calls"\n'
        f'[ -f "{folder}/served" ] || {{ echo "E404 not found" >&2; exit 1; }}\n'
        f'cp "{folder}/served" "$5/set-icons-1.2.3.tgz"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_an_archive_is_fetched_once(npm: Path, tmp_path: Path) -> None:
    content = archive({"a.json": b"{}"})
    (npm / "served").write_bytes(content)
    package = pinned(content)
    for _ in range(2):
        paths = fetch_packages([package], tmp_path / "got")
        assert paths["@set/icons"].read_bytes() == content
    calls = (npm / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert calls[0].startswith("pack @set/icons@1.2.3 --ignore-scripts --pack-destination ")
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["set-icons-1.2.3.tgz"]
    # A half file of an earlier day is fetched again.
    paths["@set/icons"].write_bytes(content[:10])
    assert fetch_packages([package], tmp_path / "got")["@set/icons"].read_bytes() == content


def test_another_archive_than_the_pinned_one_is_not_kept(npm: Path, tmp_path: Path) -> None:
    (npm / "served").write_bytes(archive({"a.json": b"changed"}))
    with pytest.raises(FetchError, match="SHA-512 differs"):
        fetch_packages([pinned(archive({"a.json": b"{}"}))], tmp_path / "got")
    assert list((tmp_path / "got").iterdir()) == []


def test_what_npm_says_is_passed_on(npm: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"@set/icons@1\.2\.3 failed: E404 not found"):
        fetch_packages([pinned(b"")], tmp_path / "got")


def test_missing_npm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match=r"install Node\.js, or put set-icons-1\.2\.3\.tgz"):
        fetch_packages([pinned(b"")], tmp_path / "got")


def test_members_are_read_below_package(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(archive({"en/data.json": b"1", "de/data.json": b"2"}))
    assert read_members(tmp_path / "a.tgz", lambda path: path.startswith("en/")) == {
        "en/data.json": b"1"
    }
