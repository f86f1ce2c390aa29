"""Decoding of MP4, WebM and their like, through PyAV.

The container is recognised here, by its first bytes, and its name is handed to FFmpeg together with
an open file: FFmpeg neither guesses formats (playlists would open further files and addresses) nor
opens anything itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from sana_like_pipelines.media.clip import ClipFacts, ClipInfo, TimedFrame
from sana_like_pipelines.media.colour import flatten
from sana_like_pipelines.media.errors import ClipError, PictureNotice
from sana_like_pipelines.media.metadata import CLIP_KEY, parse_object
from sana_like_pipelines.media.rates import MAX_RATE, exact_rate
from sana_like_pipelines.media.read import check_size

# Ticks this fine hold rounded times; coarser ones are those of the frames themselves.
_FINE_TICK = Fraction(1, 500)
_HDR_TRANSFERS = {16: "PQ", 18: "HLG"}
# FFmpeg's own VP8 and VP9 decoders do not read transparency.
_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
_MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
_MARKS = {
    b"\x1a\x45\xdf\xa3": "matroska",
    b"OggS": "ogg",
    b"FLV\x01": "flv",
    b"\x00\x00\x01\xba": "mpeg",
}
_MPEGTS_PACKET = 188


def container_name(head: bytes) -> str | None:
    """FFmpeg's name of the container that begins with `head`, or `None` for none that is read."""
    if head[4:8] in _MP4_BOXES:
        return "mp4"
    if head.startswith(b"RIFF"):
        return "avi" if head[8:12] == b"AVI " else None
    if head[:1] == b"G" == head[_MPEGTS_PACKET : _MPEGTS_PACKET + 1]:
        return "mpegts"
    return next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)


class ContainerDecoder:
    """Frames of the first video stream of an open file.

    Args:
        file: positioned at its start; stays open.
        kind: from `container_name`.
        name: of the file, for messages.
        background: colour in 0..255 behind transparent parts.
        max_pixels: largest width times height.

    Raises:
        ClipError: FFmpeg cannot read it, there is no video, or its frames are too large.
        ImportError: PyAV is not installed.
    """

    def __init__(
        self,
        file: BinaryIO,
        kind: str,
        name: str,
        background: tuple[int, int, int],
        max_pixels: int,
    ) -> None:
        import av

        self._av, self._name, self._background = av, name, background
        self._max_pixels = max_pixels
        try:
            self._container = av.open(file, "r", format=kind, metadata_errors="replace")
        except (av.FFmpegError, ValueError) as error:
            raise ClipError(f"{name} is not a clip that can be read: {_reason(error)}") from error
        try:
            self._stream = self._first_video()
            self._facts = self._read_facts()
            self._decoding = self._decoded()
            # FFmpeg tells the rotation with the frames alone.
            self._first = next(self._decoding, None)
            if self._first is None:
                raise ClipError(f"{name} holds no frame")
            self.info = self._read_info(kind, self._first.rotation)
        except BaseException:
            self.close()
            raise
        tick = Fraction(self._stream.time_base or 0)
        self.tolerance = tick / 2 if tick <= _FINE_TICK else Fraction(0)
        """How far a frame's time may lie from the true one, in seconds."""

    def close(self) -> None:
        """Give FFmpeg's memory back."""
        self._container.close()

    def _first_video(self) -> Any:
        for stream in self._container.streams.video:
            if not stream.disposition & self._av.stream.Disposition.attached_pic:
                context = stream.codec_context
                check_size((context.width, context.height), self._name, self._max_pixels)
                context.options = {"max_pixels": str(self._max_pixels)}
                return stream
        raise ClipError(f"{self._name} holds no video that can be decoded")

    def _read_facts(self) -> ClipFacts | None:
        text = self._container.metadata.get(CLIP_KEY)
        return None if text is None else ClipFacts.from_dict(parse_object(text))

    def _read_info(self, kind: str, turned: int) -> ClipInfo:
        stream, context = self._stream, self._stream.codec_context
        width, height = _square(context.width, context.height, context.sample_aspect_ratio)
        if self._facts is not None:
            width, height = self._cut_size(width, height)
        rotation = round(turned / 90) * 90 % 360
        if rotation % 180:
            width, height = height, width
        given = stream.guessed_rate or stream.average_rate
        rate = exact_rate(given) if given and 0 < given <= MAX_RATE else None
        duration = None
        if stream.duration is not None and stream.time_base:
            duration = stream.duration * Fraction(stream.time_base)
        elif self._container.duration is not None:
            duration = Fraction(self._container.duration, self._av.time_base)
        return ClipInfo(
            width, height, rate, stream.frames or None, duration, rotation, kind, context.name
        )

    def _cut_size(self, width: int, height: int) -> tuple[int, int]:
        """The size before our writer made it even, where that is what happened."""
        facts = self._facts
        assert facts is not None
        even = (facts.width + facts.width % 2, facts.height + facts.height % 2)
        return (facts.width, facts.height) if even == (width, height) else (width, height)

    def frames(self) -> Iterator[TimedFrame]:
        """Every frame in the order of showing, once; times count from the first.

        Raises:
            ClipError: the file is damaged or cut short, or a frame is too large.
        """
        base = Fraction(self._stream.time_base)
        usual = 1 / (self.info.rate or Fraction(1 / base))
        origin: Fraction | None = None
        now = -usual
        for frame in chain([self._first], self._decoding):
            time = now + usual if frame.pts is None else frame.pts * base
            origin = time if origin is None else origin
            # Files that go back in time are damaged; their frames are shown one after the other.
            now = max(time - origin, now)
            duration = frame.duration * base if frame.duration else usual
            yield TimedFrame(self._pixels(frame), now, duration)

    def _decoded(self) -> Iterator[Any]:
        try:
            context = self._alpha_context()
            if context is None:
                yield from self._container.decode(self._stream)
                return
            for packet in self._container.demux(self._stream):
                yield from context.decode(packet)
        except (self._av.FFmpegError, ValueError) as error:
            if isinstance(error, ClipError):
                raise
            raise ClipError(f"{self._name} is damaged: {_reason(error)}") from error

    def _alpha_context(self) -> Any:
        """Another decoder, where transparency lies in the file and the usual one would skip it."""
        tags = {name.lower(): value for name, value in self._stream.metadata.items()}
        if tags.get("alpha_mode") != "1":
            return None
        decoder = _ALPHA_DECODERS.get(self._stream.codec_context.name)
        if decoder is None or decoder not in self._av.codec.codecs_available:
            message = f"the transparency of {self._name} is not read: FFmpeg has no decoder for it"
            warnings.warn(message, PictureNotice, stacklevel=2)
            return None
        return self._av.CodecContext.create(decoder, "r")

    def _pixels(self, frame: Any) -> np.ndarray:
        check_size((frame.width, frame.height), self._name, self._max_pixels)
        if frame.color_trc in _HDR_TRANSFERS:
            kind = _HDR_TRANSFERS[frame.color_trc]
            message = f"{self._name} has {kind} colours, which are read as they are and look pale"
            warnings.warn(message, PictureNotice, stacklevel=2)
        aspect = self._stream.codec_context.sample_aspect_ratio
        width, height = _square(frame.width, frame.height, aspect)
        alpha = any(component.is_alpha for component in frame.format.components)
        pixels = frame.reformat(
            width=width,
            height=height,
            format="rgba" if alpha else "rgb24",
            interpolation=exact_conversion(),
            threads=1,
        ).to_ndarray()
        if alpha:
            pixels = np.asarray(flatten(Image.fromarray(pixels, "RGBA"), self._background))
        if self._facts is not None:
            width, height = self._cut_size(width, height)
            pixels = pixels[:height, :width]
        return np.ascontiguousarray(np.rot90(pixels, self.info.rotation // 90))


def exact_conversion() -> Any:
    """Flags for swscale: without them it rounds every colour down."""
    from av.video.reformatter import Interpolation

    return (
        Interpolation.BICUBIC
        | Interpolation.ACCURATE_RND
        | Interpolation.FULL_CHR_H_INT
        | Interpolation.FULL_CHR_H_INP
    )


def _square(width: int, height: int, aspect: Fraction | None) -> tuple[int, int]:
    """The size with square pixels."""
    if not aspect or aspect == 1:
        return width, height
    return max(round(width * aspect), 1), height


def _reason(error: BaseException) -> str:
    with suppress(AttributeError):
        return str(error.strerror or error)  # type: ignore[attr-defined]
    return str(error)
