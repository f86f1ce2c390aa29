from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sana_like_train.data import emoji
from sana_like_train.data.emoji import build_emoji_pack, encode_picture, icon_svg, plain_code
from sana_like_train.data.packs import build_pack, find_pack
from sana_like_train.data.records import load_records

pytest.importorskip("resvg_py")

LEFT_HALF = '<path fill="#f00" d="M0 0h16v32H0z"/>'
ICONS = {
    "width": 32,
    "height": 32,
    "icons": {"apple": {"body": LEFT_HALF}, "wide": {"body": LEFT_HALF, "width": 64}},
    "aliases": {
        "mirrored": {"parent": "apple", "hFlip": True},
        "twice": {"parent": "mirrored", "hFlip": True},
        "turned": {"parent": "apple", "rotate": 1},
    },
}


def write_tgz(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def alpha(name: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(encode_picture(icon_svg(ICONS, name)))))[..., 3]


def test_codes_lose_the_variation_selector() -> None:
    assert plain_code("1F441-FE0F-200D-1F5E8-FE0F") == "1f441-200d-1f5e8"


def test_icons_are_drawn_where_they_belong() -> None:
    apple = alpha("apple")
    assert apple.shape == (256, 256)
    assert apple[:, :120].min() == 255
    assert apple[:, 136:].max() == 0
    assert np.array_equal(alpha("mirrored"), apple[:, ::-1])
    assert np.array_equal(alpha("twice"), apple)
    with pytest.raises(ValueError, match="rotate"):
        icon_svg(ICONS, "turned")


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Archives of two emoji, a flag and a skin-tone part, in the layout of the real ones."""

    def entry(hexcode: str, label: str, group: int | None) -> dict:
        shared = {"hexcode": hexcode, "label": label, "emoji": "x"}
        return shared | ({} if group is None else {"group": group, "subgroup": 7, "tags": ["t"]})

    names = {"en": "", "es": " es", "fr": " fr", "de": " de", "zh": " zh", "ja": " ja"}
    files = {
        f"{language}/data.json": json.dumps(
            [
                entry("1F34E", f"red apple{suffix}", 4),
                entry("2602-FE0F", f"umbrella{suffix}", 5),
                entry("1F1E6-1F1E8", f"flag{suffix}", 9),
                entry("1F3FB", f"light skin{suffix}", 2),
                entry("1F1E6", f"regional indicator{suffix}", None),
            ]
        ).encode()
        for language, suffix in names.items()
    }
    groups = {4: "food-drink", 5: "travel-places", 9: "flags", 2: "component"}
    files["en/messages.json"] = json.dumps(
        {
            "groups": [{"order": order, "key": key} for order, key in groups.items()],
            "subgroups": [{"order": 7, "key": "sub"}],
        }
    ).encode()
    made = {emoji.EMOJIBASE.name: write_tgz(tmp_path / "base.tgz", files)}

    def webp(colour: str) -> bytes:
        encoded = io.BytesIO()
        Image.new("RGBA", (256, 256), colour).save(encoded, "WEBP")
        return encoded.getvalue()

    assets = {"2602-fe0f": "red", "2602": "blue", "1f1e6-1f1e8": "red", "1f34e-1f3fb": "red"}
    made[emoji.FLUENT_3D.name] = write_tgz(
        tmp_path / "3d.tgz",
        {f"assets/{name}.webp": webp(colour) for name, colour in assets.items()},
    )
    icons = {
        "icons.json": json.dumps(ICONS).encode(),
        "chars.json": b'{"1f34e": "apple", "2602": "mirrored", "1f1e6-1f1e8": "wide"}',
    }
    for style, package in emoji.ICON_SETS.items():
        made[package.name] = write_tgz(tmp_path / f"{style}.tgz", icons)
    monkeypatch.setattr(emoji, "fetch_packages", lambda packages, folder, report: made)
    return made


def test_pack_holds_what_the_packages_share(archives: dict[str, Path], tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    path = build_emoji_pack(
        tmp_path / "new" / "pack.tar", workers=1, progress=lambda *numbers: done.append(numbers)
    )
    records = {record.key: record for record in load_records(path)}
    assert list(records) == [
        "1f34e_flat",
        "1f34e_noto",
        "1f34e_twemoji",
        "2602_3d",
        "2602_flat",
        "2602_noto",
        "2602_twemoji",
    ]
    assert done[-1] == (7, 7)
    apple = records["1f34e_flat"]
    assert (apple.concept, apple.style, apple.group) == ("1f34e", "flat", "food-drink")
    assert apple.captions[0].text == "red apple, flat"
    with tarfile.open(path) as pack:
        metadata = json.load(pack.extractfile("1f34e_flat.json"))
    assert metadata["ja"]["label"] == "red apple ja"
    red = records["2602_3d"].open_picture()  # 2602-fe0f.webp sorts before 2602.webp
    assert red[0].min() > 0.9
    assert red[2].max() < -0.9


def test_the_same_packages_give_the_same_bytes(archives: dict[str, Path], tmp_path: Path) -> None:
    packs = [build_emoji_pack(tmp_path / f"{n}.tar", workers=n) for n in (1, 2)]
    assert packs[0].read_bytes() == packs[1].read_bytes()


def test_a_failure_leaves_no_half_pack(
    archives: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        build_emoji_pack(folder / "pack.tar", workers=1, progress=fail)
    assert list(folder.iterdir()) == []


def test_packs_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emoji, "user_data", lambda: tmp_path)
    with pytest.raises(ValueError, match="no pack 'photos'"):
        build_pack("photos")
    with pytest.raises(ValueError, match="sana-like train data emoji"):
        find_pack("emoji")
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "emoji_stills.tar").touch()
    assert find_pack("emoji") == tmp_path / "packs" / "emoji_stills.tar"
