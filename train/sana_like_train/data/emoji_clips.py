"""Builds the pack of emoji clips: 693 animated pictures, one loop of about three seconds each.

Art: Fluent emoji by Microsoft, animated (MIT). The packages below hold more; taken are those that
Microsoft itself publishes under that licence, without skin-tone variants, by the committed list
`emoji_clips.json`. Labels, tags and groups: emojibase-data (MIT; Unicode licence).

The pack is a WebDataset tar like that of `emoji`: the same packages and library versions give the
same bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

from PIL import Image

from sana_like.folders import user_cache, user_data
from sana_like_train.data.emoji import EMOJIBASE, plain_code, read_concepts, write_pack
from sana_like_train.data.motion import CLIP_FRAMES, CLIP_RATE
from sana_like_train.data.npm import NpmPackage, fetch_packages, read_members
from sana_like_train.data.split import read_split_file

STYLE = "3d"
WEBP_QUALITY = 66

ANIMATIONS = tuple(
    NpmPackage(f"@lobehub/fluent-emoji-anim-{number}", "1.0.0", sha512)
    for number, sha512 in enumerate(
        (
            "/4m31vAuZEQ4aUJ5pxcOU5PVkuJya55GRxUZL7+zgLlxZXpzzE8jPqpDyhZICE3n47nS/Y9M5/vLdizi8201QA==",
            "S6yzf0RZXrQbXdxCWuHA9BAoLdBRk2flX+ne4TPGEH/qApwisCAKHoAAGjKSlTY3OVeZ9b7t/NEbmpjawnQYJA==",
            "UzRSUDMjdfdt9vER5bhjHkPqgc3EEgfGtYs6ndvizOTvQOxYQ57ow2RTkWSDZxwW30X4EYBi2eWTS7CXDDoFsg==",
            "IIkl5ztSd1HrzvIDt/uGsFoC1WODXRdYq5uROrnkyqi9DbToEcJ1nlY86PnoUXeFS9nBCnHfiYk3ouSEGThFmA==",
        ),
        start=1,
    )
)


def default_clips_pack() -> Path:
    """Return where the pack is built and looked for unless another place is given."""
    return user_data() / "packs" / "emoji_clips.tar"


def clip_codes() -> frozenset[str]:
    """Code points of the animated emoji that the pack holds."""
    return frozenset(json.loads(read_split_file("emoji_clips"))["concepts"].split())


def build_clips_pack(
    output: Path | None = None,
    *,
    downloads: Path | None = None,
    workers: int | None = None,
    report: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Fetch the npm packages, 730 MB in all, and write the pack; returns its path.

    Arguments and errors as for `build_emoji_pack`.
    """
    path = default_clips_pack() if output is None else Path(output)
    cache = user_cache() / "npm" if downloads is None else Path(downloads)
    archives = fetch_packages([EMOJIBASE, *ANIMATIONS], cache, report)
    if report is not None:
        report("encoding the clips")
    concepts = read_concepts(archives[EMOJIBASE.name])
    codes = clip_codes() & concepts.keys()
    encoded: dict[str, bytes] = {}
    with ProcessPoolExecutor(workers) as pool:
        for package in ANIMATIONS:
            sources = dict(_sources(archives[package.name], codes))
            clips = pool.map(encode_clip, sources.values(), chunksize=4)
            for code, clip in zip(sources, clips, strict=True):
                encoded.setdefault(code, clip)
                if progress is not None:
                    progress(len(encoded), len(codes))
    entries = (
        (f"{code}_{STYLE}", _described(code, concepts[code]), encoded[code])
        for code in sorted(encoded)
    )
    write_pack(path, entries)
    return path


def encode_clip(animation: bytes) -> bytes:
    """One loop of an animated picture as WebP of `CLIP_FRAMES` frames; the last is the first again.

    Frame k shows what is on show after k of `CLIP_FRAMES - 1` parts of the loop.
    """
    with Image.open(io.BytesIO(animation)) as opened:
        frames, ends, now = [], [], Fraction(0)
        for place in range(getattr(opened, "n_frames", 1)):
            opened.seek(place)
            frames.append(opened.convert("RGBA"))
            now += Fraction(opened.info.get("duration") or 100)
            ends.append(now)
    moments = [now * place / (CLIP_FRAMES - 1) for place in range(CLIP_FRAMES - 1)]
    shown = [next(i for i, end in enumerate(ends) if moment < end) for moment in moments]
    first, *rest = [frames[place] for place in (*shown, shown[0])]
    stream = io.BytesIO()
    first.save(
        stream,
        "WEBP",
        save_all=True,
        append_images=rest,
        duration=1000 // CLIP_RATE,
        loop=0,
        quality=WEBP_QUALITY,
        method=4,
    )
    return stream.getvalue()


def _sources(archive: Path, codes: frozenset[str] | set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield code -> animated WebP, each code once."""
    prefix, suffix = "assets/", ".webp"

    def code_of(path: str) -> str:
        return plain_code(path.removeprefix(prefix).removesuffix(suffix))

    assets = read_members(archive, lambda path: path.endswith(suffix) and code_of(path) in codes)
    seen: set[str] = set()
    for path in sorted(assets, reverse=True):
        code = code_of(path)
        if code not in seen and _is_animated(assets[path]):
            seen.add(code)
            yield code, assets[path]


def _is_animated(content: bytes) -> bool:
    with Image.open(io.BytesIO(content)) as opened:
        return bool(getattr(opened, "is_animated", False))


def _described(code: str, concept: Mapping[str, Any]) -> dict[str, Any]:
    facts = {"code": code, "style": STYLE, "frames": CLIP_FRAMES, "fps": CLIP_RATE}
    return {**facts, **concept}
