"""Writing clips frame by frame, whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np

from sana_like.weights.files import replacing
from sana_like_pipelines.media.clip import ClipFacts, Frame, frame_pixels
from sana_like_pipelines.media.errors import ClipError
from sana_like_pipelines.media.metadata import recipe_json, sidecar_path
from sana_like_pipelines.media.rates import exact_rate

DEFAULT_QUALITY = 85


class ClipWriter(ABC):
    """Takes frames one by one and puts the finished clip in place; a context manager.

        with clip_writer("walk.mp4", rate=24) as writer:
            for frame in frames:
                writer.write(frame)

    The clip grows under a temporary name in the same folder. Leaving the block flushes it to disk
    and puts it in place, the sidecar first; an exception inside, `KeyboardInterrupt` among them,
    removes it and leaves an earlier clip of that name as it was.

    Args:
        path: of the clip; missing folders are made.
        rate: frames per second, see `exact_rate`.
        recipe: JSON values, see `sana_like_pipelines.recipe`; `None` writes none, nor a sidecar.
        sidecar: also write `<file name>.json`. Where none is written, that of an earlier clip of
            this name is removed.
        quality: 1 to 100, as for JPEG.
        frames: how many there will be, where that is known; stands in the file's facts.

    Raises:
        ClipError: a rate or quality that is none, or that the format cannot hold.
        PictureError: a recipe that JSON cannot hold.
    """

    max_rate: ClassVar[int | None] = None
    """Fastest rate that the format can hold."""

    def __init__(
        self,
        path: str | Path,
        rate: int | float | str | Fraction,
        recipe: Mapping[str, Any] | None = None,
        *,
        sidecar: bool = True,
        quality: int = DEFAULT_QUALITY,
        frames: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.rate = exact_rate(rate)
        self.recipe = recipe
        self.quality = quality
        self.promised = frames
        self.count = 0
        """Frames written so far."""
        self.size: tuple[int, int] | None = None
        """Height and width, once there is a frame."""
        self._sidecar = sidecar
        self._temporary: Path | None = None
        if not 1 <= quality <= 100:
            raise ClipError(f"quality is {quality}; it must be from 1 to 100")
        if self.max_rate is not None and self.rate > self.max_rate:
            raise ClipError(
                f"{self.path.name}: {self.rate} frames per second are more than the "
                f"{self.max_rate} that this format holds; write MP4, or a lower rate"
            )
        if recipe is not None:
            recipe_json(recipe)
        self._check_target()

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        name = f".{self.path.name}.{secrets.token_hex(4)}.tmp"
        self._temporary = self.path.with_name(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish_and_place()
            else:
                self._abandon()
        except BaseException:
            self._abandon()
            raise
        finally:
            remove(self.temporary)
            self._temporary = None

    @property
    def temporary(self) -> Path:
        """Where the clip grows; raises `ClipError` outside of the `with` block."""
        if self._temporary is None:
            raise ClipError("a clip is written inside `with clip_writer(...) as writer:`")
        return self._temporary

    def write(self, frame: Frame) -> None:
        """Add a frame.

        Args:
            frame: see `Frame`; all must have the size of the first.

        Raises:
            ClipError: not such a frame, or another size.
            OSError: the disk refuses.
        """
        _ = self.temporary  # refuses frames outside of the block
        pixels = frame_pixels(frame)
        size = pixels.shape[0], pixels.shape[1]
        if self.size is None:
            self.size = size
            self._open()
        if size != self.size:
            raise ClipError(
                f"frame {self.count} is {size[1]}x{size[0]}, the first was "
                f"{self.size[1]}x{self.size[0]}: all must have one size"
            )
        self._add(pixels)
        self.count += 1

    def facts(self, count: int | None) -> dict[str, Any]:
        """What the file says of its clip of `count` frames."""
        assert self.size is not None
        return ClipFacts(self.rate, count, self.size[1], self.size[0]).to_dict()

    def _finish_and_place(self) -> None:
        if self.count == 0:
            raise ClipError(f"{self.path.name}: a clip needs at least one frame")
        self._finish()
        if self.recipe is not None and self._sidecar:
            with replacing(sidecar_path(self.path)) as beside:
                beside.write_text(recipe_json(self.recipe) + "\n", encoding="utf-8")
        self._place()
        if self.recipe is None or not self._sidecar:
            sidecar_path(self.path).unlink(missing_ok=True)

    def _place(self) -> None:
        with self.temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        self.temporary.replace(self.path)

    def _check_target(self) -> None:
        """Refuse a path at which the clip could not be put in the end."""
        if self.path.is_dir():
            raise ClipError(f"{self.path} is a folder; give the name of a file")

    @abstractmethod
    def _open(self) -> None:
        """Begin a file for frames of `self.size`."""

    @abstractmethod
    def _add(self, pixels: np.ndarray) -> None:
        """Add uint8 `[Y, X, 3]`."""

    @abstractmethod
    def _finish(self) -> None:
        """Complete the file."""

    def _abandon(self) -> None:  # noqa: B027 - most hold nothing that must be let go
        """Let everything go that belongs to an unfinished file; raises nothing."""


def remove(path: Path) -> None:
    """Remove a file or folder if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def clip_writer(
    path: str | Path,
    rate: int | float | str | Fraction,
    recipe: Mapping[str, Any] | None = None,
    *,
    sidecar: bool = True,
    quality: int = DEFAULT_QUALITY,
    frames: int | None = None,
) -> ClipWriter:
    """The writer for the suffix of `path`; arguments and errors as for `ClipWriter`.

    - `.mp4`: H.264, yuv420p, index in front, in constant memory.
    - `.webp`, `.gif`: animated picture that repeats; all frames are held in memory.
    - no suffix: a folder of PNG frames, every bit kept.
    """
    from sana_like_pipelines.media.clip_formats import FORMATS

    kind = FORMATS.get(Path(path).suffix.lower())
    if kind is None:
        raise ClipError(
            f"{Path(path).name} ends in {Path(path).suffix}; clips are written as "
            f"{', '.join(suffix for suffix in FORMATS if suffix)}, or without suffix as a folder "
            "of frames"
        )
    return kind(path, rate, recipe, sidecar=sidecar, quality=quality, frames=frames)


def write_clip(
    frames: Iterable[Frame],
    path: str | Path,
    rate: int | float | str | Fraction,
    recipe: Mapping[str, Any] | None = None,
    *,
    sidecar: bool = True,
    quality: int = DEFAULT_QUALITY,
) -> Path:
    """Write all of `frames`; see `ClipWriter`. Returns `path`."""
    with clip_writer(path, rate, recipe, sidecar=sidecar, quality=quality) as writer:
        for frame in frames:
            writer.write(frame)
    return writer.path
