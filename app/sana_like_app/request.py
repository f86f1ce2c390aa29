"""What a run is asked for, in plain values, and whether it can be meant; no model is needed."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sana_like_app.speed import Speed

LARGEST_SEED = 2**63 - 1
LARGEST_SIDE = 16384
# Pixels per cell of the latent grid of every published autoencoder for images that SANA uses.
GRID = 32
GUIDANCE_PASSES = ("auto", "batched", "sequential")
SCHEDULERS = ("flow-dpm", "flow-euler", "flow-heun")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A LoRA file or folder and how strongly it counts."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class PictureRequest:
    """Pictures to make. `None` leaves a value to the model.

    Pictures run in the order of the prompts, `count` of each; picture `i` has seed `seed + i`.
    """

    prompts: tuple[str, ...]
    seed: int
    model: str = "emoji"
    negative_prompt: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance_scale: float | None = None
    guidance_interval: tuple[float, float] | None = None
    pag_scale: float | None = None
    count: int = 1
    batch_size: int = 1
    image: Path | None = None
    strength: float | None = None
    mask: Path | None = None
    controls: tuple[Path, ...] = ()
    controlnets: tuple[str, ...] = ()
    control_scale: float | None = None
    adapters: tuple[Adapter, ...] = ()
    scheduler: str | None = None
    cache_threshold: float | None = None
    guidance_passes: str | None = None
    speed: Speed = field(default_factory=Speed)

    def pictures(self) -> list[tuple[str, int]]:
        """Prompt and seed of every picture, in order."""
        repeated = [prompt for prompt in self.prompts for _ in range(self.count)]
        return [(prompt, self.seed + i) for i, prompt in enumerate(repeated)]

    def batches(self) -> Iterator[tuple[list[str], list[int]]]:
        """Prompts and seeds, `batch_size` pictures at a time."""
        pictures = self.pictures()
        for start in range(0, len(pictures), self.batch_size):
            part = pictures[start : start + self.batch_size]
            yield [prompt for prompt, _ in part], [seed for _, seed in part]

    def check(self) -> None:
        """Refuse what cannot be made, before anything is loaded.

        Raises:
            ValueError: a number out of range, a file that is missing, or options that need others.
        """
        if not self.prompts:
            raise ValueError('no prompt was given; an empty one is ""')
        self._check_numbers()
        self._check_combinations()
        for path in (self.image, self.mask, *self.controls):
            if path is not None and not path.is_file():
                raise ValueError(f"picture {str(path)!r} does not exist or is no file")
        for adapter in self.adapters:
            if not adapter.path.exists():
                raise ValueError(f"LoRA {str(adapter.path)!r} does not exist")

    def _check_numbers(self) -> None:
        check_side("width", self.width)
        check_side("height", self.height)
        for name, whole in (
            ("steps", self.steps),
            ("count", self.count),
            ("batch size", self.batch_size),
        ):
            if whole is not None and whole < 1:
                raise ValueError(f"{name} is {whole}; it must be 1 or more")
        last = self.seed + len(self.prompts) * self.count - 1
        if not 0 <= self.seed <= last <= LARGEST_SEED:
            raise ValueError(f"seed {self.seed} is out of range; legal are 0 to {LARGEST_SEED}")
        check_range("guidance scale", self.guidance_scale, 0, 100)
        check_range("PAG scale", self.pag_scale, 0, 100)
        check_range("control scale", self.control_scale, 0, 10)
        threshold = self.cache_threshold
        if threshold is not None and not (threshold > 0 and math.isfinite(threshold)):
            raise ValueError(f"cache threshold is {threshold}; legal are numbers above 0")
        if self.strength is not None and not 0 < self.strength <= 1:
            raise ValueError(f"strength is {self.strength}; legal are numbers above 0, up to 1")
        if self.guidance_interval is not None:
            low, high = self.guidance_interval
            if not 0 <= low < high <= 1:
                raise ValueError(
                    f"guidance interval {low}:{high} must be LOW:HIGH with 0 <= LOW < HIGH <= 1"
                )
        for adapter in self.adapters:
            check_range(f"scale of LoRA {str(adapter.path)!r}", adapter.scale, -10, 10)

    def _check_combinations(self) -> None:
        if self.image is None:
            for name, value in (("--strength", self.strength), ("--mask", self.mask)):
                if value is not None:
                    raise ValueError(f"{name} needs --image: the picture to start from")
        if self.controls and self.image is not None:
            raise ValueError("--control and --image do not go together; leave one out")
        if not self.controls and (self.controlnets or self.control_scale is not None):
            raise ValueError("--controlnet and --control-scale need --control: a picture to follow")
        if self.controlnets and len(self.controlnets) != len(self.controls):
            raise ValueError(
                f"{len(self.controls)} --control pictures need as many --controlnet models, "
                f"got {len(self.controlnets)}"
            )
        if self.guidance_passes not in (None, *GUIDANCE_PASSES):
            raise ValueError(
                f"unknown guidance passes {self.guidance_passes!r}; legal are "
                f"{', '.join(GUIDANCE_PASSES)}"
            )
        if self.scheduler is not None and self.scheduler not in SCHEDULERS:
            raise ValueError(
                f"unknown scheduler {self.scheduler!r}; legal are {', '.join(SCHEDULERS)}"
            )


def read_prompts(file: Path) -> list[str]:
    """The prompts in a text file, one a line, without the blank ones.

    Raises:
        ValueError: there is no such file, it is no UTF-8 text, or it holds no prompt.
    """
    if not file.is_file():
        raise ValueError(f"prompts file {str(file)!r} does not exist or is no file")
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"prompts file {str(file)!r} is no UTF-8 text: {error}") from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise ValueError(f"prompts file {str(file)!r} holds no prompt; write one a line")
    return prompts


def random_seed() -> int:
    """A seed short enough to be typed again."""
    return secrets.randbelow(2**32)


def parse_size(text: str) -> tuple[int, int]:
    """`WIDTHxHEIGHT`, such as `768x512`, to its two whole numbers.

    Raises:
        ValueError: anything else, with the reason.
    """
    parts = text.strip().lower().split("x")
    if len(parts) != 2:
        raise ValueError(f"size {text!r} is not WIDTHxHEIGHT, such as 768x512")
    sides = []
    for name, part in zip(("width", "height"), parts, strict=True):
        if not re.fullmatch(r"-?[0-9]{1,9}", part):
            raise ValueError(f"{name} {part!r} in size {text!r} is no whole number of pixels")
        side = int(part)
        check_side(name, side)
        sides.append(side)
    return sides[0], sides[1]


def parse_whole(text: str | int) -> int:
    """A whole number as it is written; `512.0` is none. A number stays what it is.

    Raises:
        ValueError: anything else.
    """
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", str(text).strip()):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def parse_adapter(text: str) -> Adapter:
    """`PATH` or `PATH:SCALE` of a LoRA; a colon that no number follows belongs to the path."""
    path, colon, scale = text.rpartition(":")
    try:
        return Adapter(path=Path(path), scale=float(scale)) if colon and path else _plain(text)
    except ValueError:
        return _plain(text)


def _plain(text: str) -> Adapter:
    return Adapter(path=Path(text))


def parse_interval(text: str) -> tuple[float, float]:
    """`LOW:HIGH`, such as `0.1:0.8`, to its two numbers.

    Raises:
        ValueError: anything else.
    """
    low, colon, high = text.partition(":")
    try:
        if colon:
            return float(low), float(high)
    except ValueError:
        pass
    raise ValueError(f"guidance interval {text!r} is not LOW:HIGH, such as 0.1:0.8")


def check_side(name: str, side: int | None) -> None:
    """Refuse a side that no picture has; `None` is left to the model."""
    if side is None or 0 < side <= LARGEST_SIDE:
        return
    nearest = GRID if side <= 0 else LARGEST_SIDE
    raise ValueError(
        f"{name} {side} is no picture size; legal are 1 to {LARGEST_SIDE} pixels, the nearest "
        f"multiple of {GRID} is {nearest}"
    )


def check_range(name: str, value: float | None, low: float, high: float) -> None:
    """Refuse a number outside of `low` to `high`; `None` is left to the model."""
    if value is not None and not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} is {value}; legal are {low} to {high}")
