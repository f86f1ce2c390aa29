"""The formats that clips are written in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from sana_like.weights.files import write_json
from sana_like_pipelines.media.clip_containers import exact_conversion
from sana_like_pipelines.media.clip_write import ClipWriter
from sana_like_pipelines.media.errors import ClipError
from sana_like_pipelines.media.metadata import (
    FOLDER_INDEX,
    clip_tags,
    exif_bytes,
    recipe_json,
    with_facts,
)

ANIMATION_LIMIT = 2**30  # bytes of frames held in memory
_BT709 = 1  # colour primaries, transfer and matrix of high-definition video
_LIMITED = 1  # luma from 16 to 235


class Mp4Writer(ClipWriter):
    """H.264 in MP4 that browsers and phones play: yuv420p, BT.709, index in front.

    Colours lie at half resolution in yuv420p, so sides must be even: an odd one gets a copy of its
    last row or column. The true size stands in the facts, by which `read_clip` cuts it off again.
    """

    _container: Any = None
    _stream: Any = None

    @property
    def crf(self) -> int:
        """x264's constant rate factor: 16 at the default quality, 10 at 100, 50 at 1."""
        return round(10 + 0.4 * (100 - self.quality))

    def _open(self) -> None:
        import av

        assert self.size is not None
        with _disk_errors(self.path):
            # With its scheme, since FFmpeg takes a name with a colon for an address.
            self._container = av.open(
                f"file:{self.temporary}",
                "w",
                format="mp4",
                options={"movflags": "+faststart+use_metadata_tags"},
            )
        tags = clip_tags(self.recipe, self.facts(self.promised))
        self._container.metadata.update(tags)
        stream = self._container.add_stream(
            "libx264", rate=self.rate, options={"crf": str(self.crf), "preset": "medium"}
        )
        stream.height, stream.width = (side + side % 2 for side in self.size)
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.color_primaries = context.color_trc = context.colorspace = _BT709
        context.color_range = _LIMITED
        self._stream = stream

    def _add(self, pixels: np.ndarray) -> None:
        import av

        height, width = pixels.shape[:2]
        if height % 2 or width % 2:
            pixels = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(
            format="yuv420p",
            dst_colorspace="ITU709",
            dst_color_range="MPEG",
            interpolation=exact_conversion(),
            threads=1,
        )
        frame.pts, frame.time_base = self.count, 1 / self.rate
        with _disk_errors(self.path):
            for packet in self._stream.encode(frame):
                self._container.mux(packet)

    def _finish(self) -> None:
        with _disk_errors(self.path):
            for packet in self._stream.encode():
                self._container.mux(packet)
            self._container.close()
        self._container = None

    def _abandon(self) -> None:
        if self._container is not None:
            with suppress(Exception):  # a full disk refuses the index as well
                self._container.close()
            self._container = None


class AnimationWriter(ClipWriter):
    """An animated picture that repeats without end; frames are held until it is written."""

    def _open(self) -> None:
        self._frames: list[Image.Image] = []

    def _add(self, pixels: np.ndarray) -> None:
        if (self.count + 1) * pixels.nbytes > ANIMATION_LIMIT:
            raise ClipError(
                f"{self.path.name}: {self.count + 1} frames take more than "
                f"{ANIMATION_LIMIT / 2**30:.0f} GiB of memory; write MP4, which needs none"
            )
        self._frames.append(Image.fromarray(pixels))

    def _durations(self, tick: int) -> list[int]:
        """Milliseconds of each frame, rounded so that no error adds up; multiples of `tick`."""
        ends = [
            round(Fraction(place * 1000, tick) / self.rate) * tick
            for place in range(self.count + 1)
        ]
        return [later - earlier for earlier, later in pairwise(ends)]

    def _carried(self) -> dict[str, Any]:
        return with_facts(self.recipe, self.facts(self.count))


class WebpWriter(AnimationWriter):
    """Animated WebP, lossless at quality 100; the recipe is in its EXIF block."""

    max_rate: ClassVar[int | None] = 1000

    def _finish(self) -> None:
        first, *rest = self._frames
        first.save(
            self.temporary,
            format="WEBP",
            save_all=True,
            append_images=rest,
            duration=self._durations(tick=1),
            loop=0,
            lossless=self.quality == 100,
            quality=self.quality,
            exif=exif_bytes(self._carried()),
        )


class GifWriter(AnimationWriter):
    """GIF: 256 colours a frame, times in hundredths of a second; the recipe is its comment."""

    # Browsers slow frames of one hundredth and less to a tenth of a second.
    max_rate: ClassVar[int | None] = 50

    def _finish(self) -> None:
        first, *rest = self._frames
        first.save(
            self.temporary,
            format="GIF",
            save_all=True,
            append_images=rest,
            duration=self._durations(tick=10),
            loop=0,
            comment=recipe_json(self._carried(), ascii_only=True).encode("ascii"),
        )


class FolderWriter(ClipWriter):
    """A folder of PNG frames with `clip.json`; the folder appears whole."""

    def _check_target(self) -> None:
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ClipError(f"{self.path} exists already; give the name of a new or empty folder")

    def _open(self) -> None:
        self.temporary.mkdir()

    def _add(self, pixels: np.ndarray) -> None:
        Image.fromarray(pixels).save(self.temporary / f"frame-{self.count:06d}.png")

    def _finish(self) -> None:
        write_json(self.temporary / FOLDER_INDEX, with_facts(self.recipe, self.facts(self.count)))

    def _place(self) -> None:
        if self.path.is_dir():
            self.path.rmdir()  # empty, and Windows would not replace it
        self.temporary.replace(self.path)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Make FFmpeg's errors of writing those of the system."""
    import av

    try:
        yield
    except av.FFmpegError as error:
        raise OSError(error.errno, f"{error.strerror or error}", str(path)) from error


FORMATS: dict[str, type[ClipWriter]] = {
    ".mp4": Mp4Writer,
    ".webp": WebpWriter,
    ".gif": GifWriter,
    "": FolderWriter,
}
