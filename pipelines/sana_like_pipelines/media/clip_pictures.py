"""Clips that are pictures: animated WebP, GIF and PNG, and folders of frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from sana_like_pipelines.media.clip import ClipFacts, ClipInfo, TimedFrame
from sana_like_pipelines.media.colour import flatten, to_rgb
from sana_like_pipelines.media.errors import ClipError, PictureError
from sana_like_pipelines.media.metadata import (
    FACTS_KEY,
    FOLDER_INDEX,
    animation_object,
    parse_object,
)
from sana_like_pipelines.media.rates import exact_rate
from sana_like_pipelines.media.read import check_size, picture_size, read_picture

ANIMATIONS = ("WEBP", "GIF", "PNG")
FRAME_SUFFIXES = (".png", ".webp", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
# Of a frame without a duration, or with one of a hundredth and less: what browsers make of it.
_USUAL_DURATION = Fraction(1, 10)
_SHORTEST = Fraction(1, 100)
_TICKS = {"WEBP": Fraction(1, 1000), "GIF": Fraction(1, 100), "PNG": Fraction(1, 1000)}
_INDEX_LIMIT = 16 * 2**20


class AnimationDecoder:
    """Frames of an animated picture, or of a still one as a clip of one frame.

    Args:
        file: positioned at its start; stays open.
        name, background, max_pixels: as for `ContainerDecoder`.

    Raises:
        ClipError: not such a picture, damaged, or too large.
    """

    def __init__(
        self, file: BinaryIO, name: str, background: tuple[int, int, int], max_pixels: int
    ) -> None:
        self._name, self._background = name, background
        try:
            self._image = Image.open(file, formats=ANIMATIONS)
        except MemoryError:
            raise
        except Exception as error:
            raise ClipError(f"{name} is not a clip that can be read: {error}") from error
        check_size(self._image.size, name, max_pixels)
        kind = str(self._image.format)
        self._facts = _facts(animation_object(self._image))
        self._single = self._facts is not None and _has_one_frame(self._image)
        # A GIF does not say how many frames it has; counting them would read all of it.
        claimed = None if kind == "GIF" else getattr(self._image, "n_frames", 1)
        width, height = self._image.size
        rate = self._facts.rate if self._facts else None
        self.info = ClipInfo(width, height, rate, claimed, None, 0, kind.lower(), kind.lower())
        self.tolerance = _TICKS[kind] / 2

    def close(self) -> None:
        """Give Pillow's memory back."""
        self._image.close()

    def frames(self) -> Iterator[TimedFrame]:
        """Every frame, once; times count from the first.

        Raises:
            ClipError: damaged or cut short.
        """
        now, place = Fraction(0), 0
        while True:
            try:
                self._image.seek(place)
                self._image.load()
                pixels = np.array(flatten(to_rgb(self._image.copy(), self._name), self._background))
            except EOFError:
                return
            except MemoryError:
                raise
            except Exception as error:
                raise ClipError(
                    f"{self._name} is damaged or cut short at frame {place}: {error}"
                ) from error
            duration = self._duration()
            yield TimedFrame(pixels, now, duration)
            now, place = now + duration, place + 1

    def _duration(self) -> Fraction:
        if self._facts is not None and self._single:
            # Of equal frames one is left, and it has no duration.
            return (self._facts.frames or 1) / self._facts.rate
        given = self._image.info.get("duration", 0)
        duration = Fraction(given or 0).limit_denominator(1000) / 1000
        if duration > _SHORTEST or (self._facts is not None and duration > 0):
            return duration
        return _USUAL_DURATION


class FolderDecoder:
    """Frames of a folder: pictures of one size, in the order of the numbers in their names.

    Args:
        folder: its own `clip.json` may say the rate.
        background, max_pixels: as for `ContainerDecoder`.
        rate: of the frames, where the folder does not say.

    Raises:
        ClipError: no pictures, or neither the folder nor `rate` says how fast they are.
    """

    tolerance = Fraction(0)

    def __init__(
        self,
        folder: Path,
        background: tuple[int, int, int],
        max_pixels: int,
        rate: Fraction | None,
    ) -> None:
        self._folder, self._background, self._max_pixels = folder, background, max_pixels
        files = [file for file in folder.iterdir() if file.suffix.lower() in FRAME_SUFFIXES]
        self._files = sorted(files, key=lambda file: (_numbers(file.stem), file.name))
        if not self._files:
            raise ClipError(f"{folder} holds no frames; they end in {', '.join(FRAME_SUFFIXES)}")
        facts = _facts(_index(folder))
        given = facts.rate if facts else rate
        if given is None:
            raise ClipError(f"{folder} does not say how fast its frames are; give a rate")
        self._rate = given
        width, height = picture_size(self._files[0])
        count = len(self._files)
        kind = self._files[0].suffix[1:].lower()
        self.info = ClipInfo(width, height, given, count, count / given, 0, "folder", kind)

    def close(self) -> None:
        """Nothing is held."""

    def frames(self) -> Iterator[TimedFrame]:
        """Every frame; times count from the first.

        Raises:
            ClipError: a picture is damaged, or of another size than the first.
        """
        for place, file in enumerate(self._files):
            try:
                picture = read_picture(
                    file, background=self._background, max_pixels=self._max_pixels
                )
            except PictureError as error:
                raise ClipError(f"{self._folder}: {error}") from error
            if picture.size != (self.info.width, self.info.height):
                raise ClipError(
                    f"{file} is {picture.width}x{picture.height}, the first frame of its folder "
                    f"{self.info.width}x{self.info.height}: all must have one size"
                )
            yield TimedFrame(np.asarray(picture), place / self._rate, 1 / self._rate)


def _has_one_frame(image: Image.Image) -> bool:
    """Whether an opened picture has no second frame; leaves it at its first."""
    try:
        image.seek(1)
    except EOFError:
        return True
    image.seek(0)
    return False


def is_animation(head: bytes) -> bool:
    """Whether a file that begins with `head` is a WebP, GIF or PNG."""
    webp = head.startswith(b"RIFF") and head[8:12] == b"WEBP"
    return webp or head.startswith((b"GIF87a", b"GIF89a", b"\x89PNG\r\n"))


def guess_rate(frames: int, duration: Fraction, tick: Fraction) -> Fraction:
    """The rate of `frames` equally long ones in a `duration` that was rounded to `tick`."""
    whole = max(round(frames / duration), 1)
    for rate in (Fraction(whole), Fraction(whole * 1000, 1001)):
        if abs(frames / rate - duration) <= tick:
            return rate
    return exact_rate(frames / duration)


def _numbers(stem: str) -> tuple[int, ...]:
    return tuple(int(digits[:18]) for digits in re.findall(r"[0-9]+", stem))


def _index(folder: Path) -> object:
    path = folder / FOLDER_INDEX
    if not path.is_file() or path.stat().st_size > _INDEX_LIMIT:
        return None
    return parse_object(path.read_bytes())


def _facts(carried: object) -> ClipFacts | None:
    return ClipFacts.from_dict(carried.get(FACTS_KEY)) if isinstance(carried, dict) else None
