from __future__ import annotations

from pathlib import Path

import pytest

from sana_like_app import fingerprint as module
from sana_like_app.fingerprint import fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "a.safetensors").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "README.md").write_text("a card")
    return tmp_path


def test_the_same_weights_have_the_same_name(folder: Path) -> None:
    first = fingerprint(folder)
    (folder / "README.md").write_text("another card")
    assert fingerprint(folder) == first


@pytest.mark.parametrize("name", ["vae/a.safetensors", "model_index.json"])
def test_any_change_gives_another_name(folder: Path, name: str) -> None:
    first = fingerprint(folder)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    assert fingerprint(folder) != first


def test_a_file_that_moves_gives_another_name(folder: Path) -> None:
    first = fingerprint(folder)
    (folder / "vae").rename(folder / "text")
    assert fingerprint(folder) != first


def test_large_files_are_sampled_to_both_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WHOLE", 100)
    monkeypatch.setattr(module, "BLOCK", 16)
    monkeypatch.setattr(module, "BLOCKS", 4)
    weights = folder / "vae" / "a.safetensors"
    original = weights.read_bytes()
    first = fingerprint(folder)
    for place in (0, len(original) - 1):
        changed = bytearray(original)
        changed[place] ^= 1
        weights.write_bytes(changed)
        assert fingerprint(folder) != first


def test_an_empty_folder_has_no_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no weights"):
        fingerprint(tmp_path)
