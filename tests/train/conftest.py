from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

STYLES = ("3d", "flat", "noto")
GROUPS = ("animals-nature", "food-drink")


def picture(colour: tuple[int, int, int], side: int = 32) -> Image.Image:
    """A disc of `colour` on a transparent ground."""
    image = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    for y in range(side):
        for x in range(side):
            if (2 * x - side) ** 2 + (2 * y - side) ** 2 < side**2:
                image.putpixel((x, y), (*colour, 255))
    return image


def emoji_metadata(code: str, style: str, label: str, group: str) -> dict:
    return {
        "code": code,
        "style": style,
        "en": {"label": label, "tags": ["thing", label]},
        "group": group,
        "subgroup": "sub",
        "emoji": "x",
        "es": {"label": f"{label} es", "tags": []},
    }


@pytest.fixture
def emoji_pack(tmp_path: Path) -> Callable[..., Path]:
    """Make a pack of `count` concepts, all in three styles, every picture of its own colour."""

    def make(count: int = 4, side: int = 32, name: str = "pack.tar") -> Path:
        path = tmp_path / name
        with tarfile.open(path, "w") as tar:
            for number in range(count):
                for place, style in enumerate(STYLES):
                    code = f"1f{number:03x}"
                    colour = (number * 37 % 256, 40 + 80 * place, number * 91 % 256)
                    encoded = io.BytesIO()
                    picture(colour, side).save(encoded, "WEBP", lossless=True)
                    metadata = emoji_metadata(
                        code, style, f"thing {number}", GROUPS[number % len(GROUPS)]
                    )
                    for suffix, content in (
                        ("json", json.dumps(metadata).encode()),
                        ("webp", encoded.getvalue()),
                    ):
                        member = tarfile.TarInfo(f"{code}_{style}.{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
        return path

    return make
