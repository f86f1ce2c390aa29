from __future__ import annotations

from pathlib import Path

from PIL import Image

from sana_like_train.data.check import check_source


def test_findings_are_named(tmp_path: Path) -> None:
    for name, side, colour, caption in (
        ("a", 64, "red", "a red card"),
        ("b", 64, "red", "the same card"),
        ("c", 16, "blue", "a red card"),
        ("d", 64, "green", None),
    ):
        Image.new("RGB", (side, side), colour).save(tmp_path / f"{name}.png")
        if caption is not None:
            (tmp_path / f"{name}.txt").write_text(caption)
    (tmp_path / "e.jpg").write_bytes(b"no picture")
    (tmp_path / "e.txt").write_text("broken")
    report = check_source(tmp_path, min_side=32)
    assert report.pictures == 5
    assert [key for key, _ in report.unreadable] == ["e"]
    assert report.without_caption == ("d",)
    assert report.too_small == ("c",)
    assert report.duplicates == (("a", "b"),)
    assert report.repeated_captions == (("a red card", 2),)
    assert report.sizes == (((64, 64), 3), ((16, 16), 1))
    assert not report.usable
    assert len(report.lines()) == 7
    (tmp_path / "d.txt").write_text("now with one")
    (tmp_path / "e.jpg").unlink()
    assert check_source(tmp_path).usable
