"""Builds the emoji pack: captioned pictures of 1,644 concepts in four styles.

Art: Fluent emoji by Microsoft (MIT) as `3d` and `flat`, Noto emoji by Google (Apache-2.0), Twemoji
by Twitter, Inc and other contributors (CC-BY-4.0). Labels, tags and groups: emojibase-data (MIT;
Unicode licence). Flags and skin-tone variants are left out.

The pack is a WebDataset tar of `CODE_STYLE.json` and `CODE_STYLE.webp` (RGBA), sorted, with fixed
times and owners: the same packages and library versions give the same bytes.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from sana_like.folders import user_cache, user_data
from sana_like.weights.files import replacing
from sana_like_train.data.captions import OTHER_LANGUAGES
from sana_like_train.data.npm import NpmPackage, fetch_packages, read_members

PICTURE_SIDE = 256
WEBP_QUALITY = 90
LANGUAGES = ("en", *OTHER_LANGUAGES)

EMOJIBASE = NpmPackage(
    "emojibase-data",
    "17.0.0",
    "Yvgb5AWoHViHV/gq1qr5ZAarcBip+B27/ZLRsUJkbgAEaLlZ/fof9g882LTpmEpyhBNEC0m2SEmItljHsTygjA==",
)
FLUENT_3D = NpmPackage(
    "@lobehub/fluent-emoji-3d",
    "1.1.0",
    "Wlq2lVStTnr8BDpIJ0pEnTKO4LuDxxqTEhTvRtD1DLRF0me7ogeRQjKoehDHXuVJ2Qaecgl5wRBv60lUAG3h7g==",
)
ICON_SETS: Mapping[str, NpmPackage] = {
    "flat": NpmPackage(
        "@iconify-json/fluent-emoji-flat",
        "1.2.6",
        "RY47RgPb47fYUiyrA64sIOL0+UU02s29sXpNBbIQRBUlPlfNFTKUmZDERGuxDs/7yNGWqQYvuaSYM1M4fRXlUw==",
    ),
    "noto": NpmPackage(
        "@iconify-json/noto",
        "1.2.9",
        "DQiuXENbun41ch+XPSV55H9FaWKpHTyz46YIKtSaKYD4fIDDzL1tR6H4np/T38jfrTAeI3rcKF0mqHYeZVAuaw==",
    ),
    "twemoji": NpmPackage(
        "@iconify-json/twemoji",
        "1.2.5",
        "uKpuIEV0v6K5BW3Mjdyl+XKFVAbbcPxAgifKvEMtZoUZB5+YiY5zaMm2uNNCxyXzAWU9yNLlj41WU6/mvgALsw==",
    ),
}

_LEFT_OUT_GROUPS = frozenset({"component", "flags"})

Progress = Callable[[int, int], None]
Item = TypeVar("Item")


def default_pack() -> Path:
    """Return where the pack is built and looked for unless another place is given."""
    return user_data() / "packs" / "emoji_stills.tar"


def build_emoji_pack(
    output: Path | None = None,
    *,
    downloads: Path | None = None,
    workers: int | None = None,
    report: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch the npm packages and write the pack; returns its path.

    Args:
        output: the tar, by default `default_pack()`. It appears whole or not at all.
        downloads: where the packages' archives are kept, by default the user's cache folder; a
            later call takes them from there.
        workers: processes that draw; None is one for each CPU.
        report: called with one line on what is being done.
        progress: called with pictures done and in all.

    Raises:
        FetchError: a package cannot be had.
        ImportError: resvg-py, part of the extra `train`, is not installed.
    """
    try:
        import resvg_py  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "resvg-py draws the pictures; install it with pip install 'sana-like[train]'"
        ) from error
    path = default_pack() if output is None else Path(output)
    cache = user_cache() / "npm" if downloads is None else Path(downloads)
    archives = fetch_packages([EMOJIBASE, FLUENT_3D, *ICON_SETS.values()], cache, report)
    if report is not None:
        report("drawing the pictures")
    concepts = read_concepts(archives[EMOJIBASE.name])
    by_key = dict(_sources(archives, concepts))
    sources = {key: by_key[key] for key in sorted(by_key)}
    with ProcessPoolExecutor(workers) as pool:
        drawn = pool.map(encode_picture, sources.values(), chunksize=32)
        pictures = counted(zip(sources, drawn, strict=True), len(sources), progress)
        write_pack(path, ((key, _described(key, concepts), picture) for key, picture in pictures))
    return path


def counted(items: Iterable[Item], total: int, progress: Progress | None) -> Iterator[Item]:
    """Give `items` and tell `progress` after each how many of `total` are done."""
    for done, item in enumerate(items, start=1):
        yield item
        if progress is not None:
            progress(done, total)


def write_pack(path: Path, entries: Iterable[tuple[str, Mapping[str, Any], bytes]]) -> None:
    """Write a pack of (key, what its JSON says, WebP), whole or not at all, in the order given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as temporary,
        tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for key, described, picture in entries:
            _add(tar, f"{key}.json", json.dumps(described, ensure_ascii=False).encode())
            _add(tar, f"{key}.webp", picture)


def plain_code(hexcode: str) -> str:
    """Return an emoji's code points in lower case without the variation selector FE0F."""
    return "-".join(part for part in hexcode.lower().split("-") if part != "fe0f")


def read_concepts(emojibase: Path) -> dict[str, dict[str, Any]]:
    """Return code -> what a picture's JSON says of it besides `code` and `style`."""
    wanted = {f"{language}/data.json" for language in LANGUAGES} | {"en/messages.json"}
    files = {
        name: json.loads(content)
        for name, content in read_members(emojibase, wanted.__contains__).items()
    }
    messages = files["en/messages.json"]
    groups = {group["order"]: group["key"] for group in messages["groups"]}
    subgroups = {group["order"]: group["key"] for group in messages["subgroups"]}
    by_language = {
        language: {plain_code(entry["hexcode"]): entry for entry in files[f"{language}/data.json"]}
        for language in LANGUAGES
    }
    concepts: dict[str, dict[str, Any]] = {}
    for code, english in by_language["en"].items():
        if groups.get(english.get("group"), "component") in _LEFT_OUT_GROUPS:
            continue
        concept: dict[str, Any] = {
            "en": _words(english),
            "group": groups[english["group"]],
            "subgroup": subgroups[english["subgroup"]],
            "emoji": english["emoji"],
        }
        for language in OTHER_LANGUAGES:
            if code in by_language[language]:
                concept[language] = _words(by_language[language][code])
        concepts[code] = concept
    return concepts


def encode_picture(source: str | bytes) -> bytes:
    """Return SVG text or an encoded picture as RGBA WebP of `PICTURE_SIDE` pixels."""
    if isinstance(source, str):
        import resvg_py

        source = bytes(resvg_py.svg_to_bytes(svg_string=source))
    with Image.open(io.BytesIO(source)) as opened:
        picture = opened.convert("RGBA")
    if picture.size != (PICTURE_SIDE, PICTURE_SIDE):
        picture = picture.resize((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.LANCZOS)
    encoded = io.BytesIO()
    picture.save(encoded, "WEBP", quality=WEBP_QUALITY)
    return encoded.getvalue()


def icon_svg(icons: Mapping[str, Any], name: str) -> str:
    """Return icon `name` of an Iconify set as SVG text of `PICTURE_SIDE` pixels.

    An alias is drawn as its parent, mirrored where it says so.
    """
    flipped = False
    aliases = icons.get("aliases", {})
    while name in aliases:
        unknown = set(aliases[name]) - {"parent", "hFlip", "hidden"}
        if unknown:
            raise ValueError(f"the alias {name!r} asks for {sorted(unknown)}, which is not drawn")
        flipped ^= bool(aliases[name].get("hFlip"))
        name = aliases[name]["parent"]
    icon = icons["icons"][name]
    left, top = icon.get("left", 0), icon.get("top", 0)
    width = icon.get("width", icons.get("width", 16))
    height = icon.get("height", icons.get("height", 16))
    body = icon["body"]
    if flipped:
        body = f'<g transform="translate({2 * left + width} 0) scale(-1 1)">{body}</g>'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{PICTURE_SIDE}" height="{PICTURE_SIDE}" '
        f'viewBox="{left} {top} {width} {height}">{body}</svg>'
    )


def _sources(
    archives: Mapping[str, Path], concepts: Mapping[str, Any]
) -> Iterator[tuple[str, str | bytes]]:
    """Yield key -> SVG text or encoded picture."""
    prefix, suffix = "assets/", ".webp"
    assets = read_members(archives[FLUENT_3D.name], lambda path: path.endswith(suffix))
    # Two emoji are there both with and without FE0F: the first file name wins.
    for path in sorted(assets, reverse=True):
        code = plain_code(path.removeprefix(prefix).removesuffix(suffix))
        if code in concepts:
            yield f"{code}_3d", assets[path]
    for style, package in ICON_SETS.items():
        files = read_members(archives[package.name], {"icons.json", "chars.json"}.__contains__)
        icons, icon_names = json.loads(files["icons.json"]), json.loads(files["chars.json"])
        for hexcode, name in sorted(icon_names.items()):
            code = plain_code(hexcode)
            if code in concepts:
                yield f"{code}_{style}", icon_svg(icons, name)


def _described(key: str, concepts: Mapping[str, Any]) -> dict[str, Any]:
    code, _, style = key.rpartition("_")
    return {"code": code, "style": style, **concepts[code]}


def _words(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"label": entry["label"], "tags": entry.get("tags", [])}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o644
    tar.addfile(member, io.BytesIO(content))
