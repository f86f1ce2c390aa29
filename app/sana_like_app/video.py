"""What a video is asked for, and the frames that come of it; one for clips and for streams."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sana_like_app.generation import StepReport, Studio, step_callback
from sana_like_app.request import LARGEST_SEED, Adapter, check_range, check_side
from sana_like_app.setup import VIDEO_PIPELINES, Setup

if TYPE_CHECKING:
    from sana_like_pipelines import StreamState, VideoStream

CLIP_MODEL, LONG_MODEL = "emoji-video", "emoji-long"
CLIP_SECONDS = 3.2  # of the embedded clip model
LONGEST_SECONDS = 24 * 3600
STREAMING = "SanaLongVideoPipeline"


@dataclass(frozen=True, kw_only=True)
class VideoRequest:
    """One video to make. `None` leaves a value to the model, or to the state that goes on."""

    prompt: str | None
    model: str | None = None
    seed: int | None = None
    seconds: float | None = None
    frames: int | None = None
    image: Path | None = None
    image_fit: str | None = None
    resume: Path | None = None
    size: tuple[int, int] | None = None
    """Width and height."""
    steps: int | None = None
    guidance_scale: float | None = None
    guidance_interval: tuple[float, float] | None = None
    stg_scale: float | None = None
    negative_prompt: str | None = None
    adapters: tuple[Adapter, ...] = ()
    scheduler: str | None = None

    def check(self) -> None:
        """Refuse what cannot be made, before anything is loaded.

        Raises:
            ValueError: a number out of range, a file that is missing, or options that need others.
        """
        if self.prompt is None and self.resume is None:
            raise ValueError('no prompt was given; an empty one is ""')
        if self.seconds is not None and self.frames is not None:
            raise ValueError("give --seconds or --frames, not both")
        if self.seconds is not None and not 0 < self.seconds <= LONGEST_SECONDS:
            raise ValueError(f"--seconds is {self.seconds}; legal are 0 to {LONGEST_SECONDS}")
        for name, number in (("--frames", self.frames), ("--steps", self.steps)):
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}; it must be 1 or more")
        if self.seed is not None and not 0 <= self.seed <= LARGEST_SEED:
            raise ValueError(f"seed {self.seed} is out of range; legal are 0 to {LARGEST_SEED}")
        for name, side in zip(("width", "height"), self.size or (None, None), strict=True):
            check_side(name, side)
        check_range("guidance scale", self.guidance_scale, 0, 100)
        check_range("STG scale", self.stg_scale, 0, 100)
        self._check_files()

    def _check_files(self) -> None:
        if self.image_fit is not None and self.image is None:
            raise ValueError("--image-fit needs --image: the picture to fit")
        if self.resume is not None:
            for name, value in (("--image", self.image), ("--seed", self.seed)):
                if value is not None:
                    raise ValueError(f"{name} begins a video, --resume goes on with one")
        for what, path in (("picture", self.image), ("state", self.resume)):
            if path is not None and not path.is_file():
                raise ValueError(f"{what} {str(path)!r} does not exist or is no file")
        for adapter in self.adapters:
            if not adapter.path.exists():
                raise ValueError(f"LoRA {str(adapter.path)!r} does not exist")

    @property
    def wanted_model(self) -> str:
        """The model, or the embedded one that can make so long a video."""
        if self.model is not None:
            return self.model
        length = self.seconds or (0 if self.frames is None else self.frames / 8)
        long = self.resume is not None or length > CLIP_SECONDS
        return LONG_MODEL if long else CLIP_MODEL

    def settings(self) -> dict[str, Any]:
        """Arguments of a call that the request sets, its length left out."""
        width, height = self.size or (None, None)
        values: dict[str, Any] = {
            "width": width,
            "height": height,
            "num_inference_steps": self.steps,
            "guidance_scale": self.guidance_scale,
            "guidance_interval": self.guidance_interval,
            "stg_scale": self.stg_scale,
            "negative_prompt": self.negative_prompt,
            "image_fit": self.image_fit,
        }
        return {name: value for name, value in values.items() if value is not None}


def video_setup(request: VideoRequest) -> Setup:
    """Choose the pipeline that a request means; reads the model's index but no weights.

    Raises:
        WeightsError: there is no such model, or it makes no videos.
    """
    from sana_like.weights.errors import WeightsError
    from sana_like.weights.hub import resolve_folder
    from sana_like_pipelines.loading import INDEX_NAME, Index

    index = Index.read(resolve_folder(request.wanted_model, allow_patterns=[INDEX_NAME]))
    if index.pipeline not in VIDEO_PIPELINES:
        raise WeightsError(
            f"{request.wanted_model} holds a {index.pipeline}; pictures are made "
            "by `sana-like generate`"
        )
    pipeline = "SanaImageToVideoPipeline" if request.image is not None else "SanaVideoPipeline"
    if index.pipeline == STREAMING or request.resume is not None:
        pipeline = STREAMING
    return Setup(
        pipeline=pipeline,
        model=request.wanted_model,
        adapters=request.adapters,
        scheduler=request.scheduler,
        inputs={} if request.image is None else {"image": str(request.image)},
    )


@dataclass
class Film:
    """A video in the making.

    Attributes:
        frames: one after the other, as they come.
        rate: frames per second.
        count: how many there will be.
        recipe: of the video as it is now.
        state: to go on with; `None` where this pipeline cannot.
    """

    frames: Iterator[Any]
    rate: Fraction
    count: int
    recipe: Callable[[], dict[str, Any]]
    state: Callable[[], StreamState] | None = None


class VideoStudio(Studio):
    """A loaded pipeline for videos, and the picture that goes in."""

    def frame_count(self, frames: int | None, seconds: float | None) -> int:
        """Frames of a length that was asked for; the model's own where none was."""
        if frames is not None:
            return frames
        native = self.pipe.trained_for
        return native.frames if seconds is None else max(math.floor(seconds * native.rate), 1)

    def film(
        self,
        prompt: str | None,
        seed: int | None,
        count: int,
        settings: Mapping[str, Any] | None = None,
        *,
        state: str | Path | None = None,
        prompts: Mapping[int, str] | None = None,
        on_step: StepReport | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> Film:
        """Begin a video.

        Args:
            prompt, seed: `None` where a state goes on that has its own.
            count: frames.
            settings: further arguments of the pipeline.
            state: file of a stream's state to go on with.
            prompts: further prompts by the frame from which they are meant.
            on_step: of a clip, called with steps done and in all.
            cancel: asked at every step.

        Raises:
            ValueError: an argument that this pipeline does not take or cannot use.
        """
        arguments: dict[str, Any] = {**self.inputs, **(settings or {}), "cancel": cancel}
        stream = self.setup.pipeline == STREAMING
        _check_arguments(self.pipe.stream if stream else self.pipe.__call__, arguments)
        if stream:
            return self._stream(prompt, seed, count, state, prompts or {}, arguments)
        return self._clip(prompt, seed, count, arguments, on_step)

    def _stream(
        self,
        prompt: str | None,
        seed: int | None,
        count: int,
        state: str | Path | None,
        prompts: Mapping[int, str],
        arguments: dict[str, Any],
    ) -> Film:
        generator = None if seed is None else [seed]
        stream = self.pipe.stream(
            prompt, frames=count, generator=generator, state=state, output_type="pil", **arguments
        )
        return Film(
            _with_prompts(stream, prompts),
            stream.rate,
            count,
            lambda: self._completed(stream.recipe[0]),
            lambda: stream.state,
        )

    def _clip(
        self,
        prompt: str | None,
        seed: int | None,
        count: int,
        arguments: dict[str, Any],
        on_step: StepReport | None,
    ) -> Film:
        output = self.pipe(
            prompt=prompt,
            frames=count,
            generator=None if seed is None else [seed],
            callback_on_step_end=step_callback(on_step),
            **arguments,
        )
        recipe = self._completed(output.recipe[0])
        frames = iter(output.frames[0])
        return Film(frames, self.pipe.trained_for.rate, count, lambda: recipe)

    def _completed(self, recipe: dict[str, Any]) -> dict[str, Any]:
        return {**recipe, "run": {**self.run_record, "batch_size": 1}}


def _with_prompts(stream: VideoStream, prompts: Mapping[int, str]) -> Iterator[Any]:
    """The frames of a stream, whose prompt changes after some of them, for the next chunk."""
    for count, frame in enumerate(stream, start=1):
        if count in prompts:
            stream.prompt = prompts[count]
        yield frame


def _check_arguments(function: Callable[..., Any], names: Mapping[str, Any]) -> None:
    known = inspect.signature(function).parameters
    for name in names:
        if name not in known:
            raise ValueError(f"this model takes no {name}; leave it out")
