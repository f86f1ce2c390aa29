"""Clips as users have them, brought to upright 8-bit sRGB frames at a constant rate.

Which frame is shown when is decided by time stamps, never by counting: a clip of variable rate, or
one that is read at another rate than its own, keeps its speed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from sana_like_pipelines.media.clip import Clip, ClipInfo, TimedFrame
from sana_like_pipelines.media.clip_containers import ContainerDecoder, container_name
from sana_like_pipelines.media.clip_pictures import (
    AnimationDecoder,
    FolderDecoder,
    guess_rate,
    is_animation,
)
from sana_like_pipelines.media.errors import ClipError
from sana_like_pipelines.media.rates import exact_rate
from sana_like_pipelines.media.read import DEFAULT_MAX_PIXELS, WHITE, check_background, open_file

ClipSource = str | Path | bytes
"""A file, a folder of frames, or the content of a file."""

MAX_FRAMES = 100_000  # more than an hour at 24 frames per second
MAX_BYTES = 2 * 2**30  # of frames in memory
_HEAD = 512


class Decoder(Protocol):
    """What reads one kind of file."""

    info: ClipInfo
    tolerance: Fraction
    """How far the time of a frame may lie from the true one, in seconds."""

    def frames(self) -> Iterator[TimedFrame]:
        """Every frame once, in the order of showing."""

    def close(self) -> None:
        """Give memory back."""


def probe_clip(source: ClipSource) -> ClipInfo:
    """What the header of a clip says; at most one frame is decoded.

    Raises:
        ClipError: no such file, not a clip, or its frames are too large.
    """
    with _decoder(source, WHITE, DEFAULT_MAX_PIXELS, Fraction(1)) as decoder:
        return decoder.info


def stream_clip(
    source: ClipSource,
    rate: int | float | str | Fraction | None = None,
    *,
    frames: int | None = None,
    background: tuple[int, int, int] = WHITE,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    max_frames: int = MAX_FRAMES,
) -> Iterator[np.ndarray]:
    """Give the frames of a clip one by one, in constant memory.

    Frame k is the one on show `k / rate` seconds after the first.

    Args:
        source: a file (MP4, MOV, WebM, Matroska, AVI, MPEG, Ogg, FLV; animated WebP, GIF, PNG; any
            codec that FFmpeg reads), or a folder of frames.
        rate: wanted frames per second; `None` is the clip's own, nominal one.
        frames: give only so many, from the start; fewer where the clip is shorter.
        background: colour in 0..255 behind transparent parts.
        max_pixels: largest width times height.
        max_frames: without `frames`, a longer clip is refused, by its header where that says so.

    Yields:
        uint8 `[Y, X, 3]`, upright and with square pixels, all of one size.

    Raises:
        ClipError: not such a clip, damaged, too large or long, or it says no rate and none is
            given. The message names the source.
    """
    if frames is not None and frames < 1:
        raise ClipError(f"frames is {frames}; it must be 1 or more")
    wanted = None if rate is None else exact_rate(rate)
    check_background(background)
    with _decoder(source, background, max_pixels, wanted) as decoder:
        wanted = wanted or decoder.info.rate
        if wanted is None:
            raise ClipError(f"{_name(source)} does not say its rate; give one")
        expected = _expected(decoder.info, wanted)
        if frames is None and expected is not None and expected > max_frames:
            raise ClipError(_too_long(_name(source), str(expected), max_frames))
        shape: tuple[int, ...] | None = None
        for place, pixels in enumerate(at_rate(decoder.frames(), wanted, decoder.tolerance)):
            if frames is None and place == max_frames:
                raise ClipError(_too_long(_name(source), f"more than {max_frames}", max_frames))
            shape = shape or pixels.shape
            if pixels.shape != shape:
                raise ClipError(f"{_name(source)} changes its size at frame {place}")
            yield pixels
            if place + 1 == frames:
                return


def read_clip(
    source: ClipSource,
    rate: int | float | str | Fraction | None = None,
    *,
    frames: int | None = None,
    background: tuple[int, int, int] = WHITE,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    max_frames: int = MAX_FRAMES,
    max_bytes: int = MAX_BYTES,
) -> Clip:
    """Read a clip into memory.

    Args:
        source, rate, frames, background, max_pixels, max_frames: as for `stream_clip`; an animated
            picture that says no rate gets that of its frames.
        max_bytes: most memory that the frames may take.

    Raises:
        ClipError: as `stream_clip`, and where the frames do not fit `max_bytes`.
    """
    wanted = None if rate is None else exact_rate(rate)
    with _decoder(source, WHITE, max_pixels, wanted) as decoder:
        info = decoder.info
    wanted = wanted or info.rate or _rate_of_frames(source, max_pixels, max_frames)
    room = max(max_bytes // (3 * info.width * info.height), 1)
    expected = _expected(info, wanted) or 0
    if (expected if frames is None else min(frames, expected)) > room:
        raise ClipError(_too_big(_name(source), expected, info, max_bytes))
    kept = []
    for pixels in stream_clip(
        source,
        wanted,
        frames=frames,
        background=background,
        max_pixels=max_pixels,
        max_frames=max_frames,
    ):
        kept.append(pixels)
        if len(kept) > room:
            raise ClipError(_too_big(_name(source), len(kept), info, max_bytes))
    if not kept:
        raise ClipError(f"{_name(source)} holds no frame")
    return Clip(np.stack(kept), wanted, info)


def at_rate(
    frames: Iterable[TimedFrame], rate: Fraction, tolerance: Fraction
) -> Iterator[np.ndarray]:
    """Frames of any times as frames of a constant rate.

    Output k is the last frame whose time is at most `k / rate`; the last one is held for its
    duration. There is at least one.

    Args:
        frames: in order, times counted from the first.
        rate: frames per second.
        tolerance: seconds by which times may be off.
    """
    step, given = 1 / rate, 0
    current: TimedFrame | None = None
    for frame in frames:
        while current is not None and given * step + tolerance < frame.time:
            yield current.pixels
            given += 1
        current = frame
    if current is None:
        return
    # Time and duration are both rounded.
    end = current.time + current.duration - 2 * tolerance
    while given == 0 or given * step < end:
        yield current.pixels
        given += 1


@contextmanager
def _decoder(
    source: ClipSource,
    background: tuple[int, int, int],
    max_pixels: int,
    rate: Fraction | None,
) -> Iterator[Decoder]:
    name = _name(source)
    if not isinstance(source, bytes) and Path(source).is_dir():
        yield FolderDecoder(Path(source), background, max_pixels, rate)
        return
    with io.BytesIO(source) if isinstance(source, bytes) else open_file(Path(source)) as file:
        head = file.read(_HEAD)
        file.seek(0)
        kind = container_name(head)
        decoder: Decoder
        if kind is not None:
            decoder = ContainerDecoder(file, kind, name, background, max_pixels)
        elif is_animation(head):
            decoder = AnimationDecoder(file, name, background, max_pixels)
        else:
            raise ClipError(
                f"{name} is not a clip that can be read, or it is cut short; readable are MP4, "
                "MOV, WebM, Matroska, AVI, MPEG, Ogg, FLV, animated WebP, GIF and PNG, and folders "
                "of frames"
            )
        try:
            yield decoder
        finally:
            decoder.close()


def _rate_of_frames(source: ClipSource, max_pixels: int, max_frames: int) -> Fraction:
    """The rate at which no frame of an animated picture is lost."""
    with _decoder(source, WHITE, max_pixels, None) as decoder:
        durations = [frame.duration for frame in islice(decoder.frames(), max_frames)]
        tick = 2 * decoder.tolerance
    if max(durations) - min(durations) <= tick:
        return guess_rate(len(durations), sum(durations, Fraction(0)), tick)
    return exact_rate(1 / min(durations))


def _expected(info: ClipInfo, rate: Fraction) -> int | None:
    """Frames that the header promises at `rate`; the larger of its two promises."""
    promises = []
    if info.duration is not None:
        promises.append(int(info.duration * rate))
    if info.frames is not None:
        promises.append(int(info.frames * (rate / info.rate if info.rate else 1)))
    return max(promises, default=None)


def _too_long(name: str, count: str, max_frames: int) -> str:
    return (
        f"{name} has {count} frames at this rate; at most {max_frames} are read. Cut it, read it "
        "at a lower rate, or raise max_frames"
    )


def _too_big(name: str, count: int, info: ClipInfo, max_bytes: int) -> str:
    return (
        f"{name}: {count} frames of {info.width}x{info.height} take more than the "
        f"{max_bytes / 2**30:.1f} GiB that are read; read fewer frames, or use stream_clip"
    )


def _name(source: ClipSource) -> str:
    return f"the clip of {len(source)} bytes" if isinstance(source, bytes) else str(source)
