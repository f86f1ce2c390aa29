"""From a name to a folder: embedded, then folder, then hub id; offline by default in tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from sana_like.weights import hub
from sana_like.weights.errors import WeightsError


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    zoo = tmp_path / "zoo"
    (zoo / "emoji").mkdir(parents=True)
    (zoo / "emoji" / "model_index.json").touch()
    (zoo / "emoji-ae").mkdir()
    (zoo / "emoji-ae" / "config.json").touch()
    (zoo / "no-model").mkdir()
    monkeypatch.setattr(hub, "ZOO", zoo)
    return zoo


def test_embedded_names_are_folders_with_a_model(zoo: Path) -> None:
    assert hub.embedded_names() == ["emoji", "emoji-ae"]


def test_an_embedded_name_wins_over_a_folder(zoo, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "emoji").mkdir()
    assert hub.resolve_folder("emoji") == zoo / "emoji"
    assert hub.resolve_folder("./emoji") == Path("emoji")


def test_a_folder_wins_over_a_hub_id(zoo, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert hub.resolve_folder("owner/name") == Path("owner/name")


@pytest.mark.parametrize("name", ["nope", "../emoji", "a/b/c", "", "no-model\0", "-/x y"])
def test_a_name_that_means_nothing_lists_what_is_there(zoo: Path, name: str) -> None:
    with pytest.raises(WeightsError, match="emoji, emoji-ae"):
        hub.resolve_folder(name)


def test_a_file_is_not_a_folder(zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").touch()
    with pytest.raises(WeightsError, match="found a file"):
        hub.resolve_folder(tmp_path / "x.safetensors")


def test_offline_hub_ids_come_from_the_cache_or_not_at_all(zoo: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="not in the local cache"):
        hub.resolve_folder("owner/name", local_files_only=True, cache_dir=tmp_path / "cache")
    repository = tmp_path / "cache" / "models--owner--name"
    commit = "a" * 40
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    found = hub.resolve_folder("owner/name", local_files_only=True, cache_dir=tmp_path / "cache")
    assert found == repository / "snapshots" / commit


def test_an_unreachable_hub_is_one_clear_error(zoo: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="owner/name"):
        hub.resolve_folder("owner/name", cache_dir=tmp_path / "cache")
