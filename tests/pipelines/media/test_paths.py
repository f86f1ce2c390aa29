"""File names that stay in their folder."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sana_like_pipelines.media import PictureError, safe_output
from sana_like_pipelines.media.paths import MAX_NAME_BYTES

RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(10)),
}

pieces = st.one_of(
    st.text(st.characters(), max_size=30),
    st.sampled_from(
        [
            "..",
            ".",
            "",
            "CON",
            "nul.png",
            "COM1",
            "a:b",
            "C:",
            "~",
            "~root",
            " ",
            "x" * 300,
            "é" * 300,
            "🦊" * 100 + ".png",
            "a.",
            "a ",
            "..png",
            "...",
            "\0",
            "lpt9.tar.gz",
            "$(x)",
        ]
    ),
)
names = st.lists(pieces, max_size=4).flatmap(
    lambda parts: st.sampled_from(["/", "\\"]).map(lambda s: s.join(parts))
)


@given(names)
@example("a/../b.png")
@example("\\\\server\\share\\a.png")
@example("//?/C:/a.png")
@example("CONIN$.png")
@example("com¹.png")
def test_any_name_is_refused_or_stays_inside_and_is_portable(name):
    base = Path("/no/such/base")
    try:
        path = safe_output(base, name)
    except PictureError:
        return
    inside = path.relative_to(base)
    assert inside.parts and ".." not in inside.parts
    for part in inside.parts:
        assert len(part.encode("utf-8")) <= MAX_NAME_BYTES
        assert not re.search(r'[\x00-\x1f<>:"|?*\\/]', part) and not part.endswith((".", " "))
        assert part.split(".")[0].strip().lower() not in RESERVED


@given(st.text(st.characters(), min_size=1, max_size=40))
def test_names_can_be_written(name):
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = safe_output(folder, name)
        except PictureError:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        assert path.resolve().is_relative_to(Path(folder).resolve())


@given(names, names)
@example("a:b.png", "a?b.png")
@example("x" * 300 + "1.png", "x" * 300 + "2.png")
@example("a", "a.")
def test_different_names_stay_different(one, two):
    try:
        paths = safe_output("/base", one), safe_output("/base", two)
    except PictureError:
        return
    same = [part for part in re.split(r"[/\\]", one) if part not in ("", ".")] == [
        part for part in re.split(r"[/\\]", two) if part not in ("", ".")
    ]
    assert (paths[0] == paths[1]) == same


@pytest.mark.parametrize(
    "name",
    ["apple.png", "日本語.png", "a b-c_d.(1).webp", "3d/apple.png", ".hidden", "a" * 196 + ".png"],
)
def test_good_names_are_kept(name, tmp_path):
    assert safe_output(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("a?b.png", r"a_b-[0-9a-f]{8}\.png"),
        ("CON.png", r"_CON-[0-9a-f]{8}\.png"),
        ("aux", r"_aux-[0-9a-f]{8}"),
        ("x" * 300 + ".png", r"x{187}-[0-9a-f]{8}\.png"),
        ("a red apple. ", r"a red apple-[0-9a-f]{8}"),
        ("?", r"_-[0-9a-f]{8}"),
    ],
)
def test_names_are_changed_only_as_far_as_needed(name, pattern, tmp_path):
    assert re.fullmatch(pattern, safe_output(tmp_path, name).name)
    assert safe_output(tmp_path, name) == safe_output(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "not the name of a file"),
        (".", "not the name of a file"),
        ("folder/", "not the name of a file"),
        ("..", r"\.\."),
        ("a/../../b.png", r"\.\."),
        ("a\\..\\b.png", r"\.\."),
        ("/etc/passwd", "absolute"),
        ("\\windows", "absolute"),
        ("\\\\server\\share\\a", "absolute"),
        ("C:\\a.png", "absolute"),
        ("c:a.png", "absolute"),
        ("a\0.png", "NUL"),
    ],
)
def test_names_that_point_elsewhere_are_refused(name, message, tmp_path):
    with pytest.raises(PictureError, match=message):
        safe_output(tmp_path, name)


def test_links_that_lead_out_are_refused(tmp_path):
    base, outside = tmp_path / "base", tmp_path / "outside"
    base.mkdir()
    outside.mkdir()
    (base / "out").symlink_to(outside)
    (base / "file.png").symlink_to(outside / "file.png")
    (base / "loop").symlink_to(base / "loop")
    (base / "sub").mkdir()
    (base / "in").symlink_to(base / "sub")
    for name in ("out/a.png", "file.png"):
        with pytest.raises(PictureError, match="leads out of"):
            safe_output(base, name)
    with pytest.raises(PictureError, match="loop"):
        safe_output(base, "loop/a.png")
    assert safe_output(base, "in/a.png") == base / "in/a.png"


def test_a_base_that_is_itself_a_link_is_fine(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert safe_output(tmp_path / "link", "a.png") == tmp_path / "link" / "a.png"
