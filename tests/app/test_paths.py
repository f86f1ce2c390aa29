from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sana_like_app.paths import SLUG_LENGTH, plan_outputs, slug


@given(st.text(max_size=400))
def test_slug_is_a_safe_file_name(prompt: str) -> None:
    name = slug(prompt)
    assert 1 <= len(name) <= SLUG_LENGTH
    assert Path(name).name == name and not name.startswith((".", "-"))
    assert not set(name) & set('/\\:*?"<>|\0\n ')


def test_slug_keeps_words() -> None:
    assert slug("A red apple, 3d!") == "a-red-apple-3d"
    assert slug("../../etc/passwd") == "etc-passwd"
    assert slug("une pêche") == "une-pêche"
    assert slug("🍎") == "picture"
    assert slug("word " * 100).endswith("word")


def test_one_picture_gets_the_name_asked_for(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.png"
    assert plan_outputs(target, ["x"], [1]) == [target]
    assert not target.parent.exists(), "planning writes nothing"


def test_several_pictures_share_the_stem(tmp_path: Path) -> None:
    paths = plan_outputs(tmp_path / "a.png", ["x", "y"], [1, 2])
    assert [path.name for path in paths] == ["a-1.png", "a-2.png"]


def test_folder_names_never_meet(tmp_path: Path) -> None:
    (tmp_path / "x-1.png").touch()
    paths = plan_outputs(tmp_path, ["x", "x", "y"], [1, 1, 1])
    assert [path.name for path in paths] == ["x-1-2.png", "x-1-3.png", "y-1.png"]


@pytest.mark.parametrize("name", ["a.bmp", "a.gif", "a.txt", "model.safetensors"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.png"):
        plan_outputs(tmp_path / name, ["x"], [1])


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file" / "a.png", tmp_path / "file" / "b"):
        with pytest.raises(ValueError, match="is a file"):
            plan_outputs(target, ["x"], [1])
