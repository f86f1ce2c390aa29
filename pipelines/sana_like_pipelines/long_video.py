"""Videos of any length, chunk by chunk, in memory that does not grow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sana_like.state import State
from sana_like.text.encoding import TextEncoding
from sana_like.transformers.offload import weights_present
from sana_like_pipelines.calls import NOT_IN_RECIPE, Call
from sana_like_pipelines.chunks import ChunkMaking, ChunkPlan
from sana_like_pipelines.clips_out import clips_as, deliver_frames
from sana_like_pipelines.conditioning import Conditioning
from sana_like_pipelines.fitting import Fit
from sana_like_pipelines.guidance import Branch
from sana_like_pipelines.memory import Passes
from sana_like_pipelines.noise import Seeds
from sana_like_pipelines.outputs import SanaVideoPipelineOutput
from sana_like_pipelines.pictures import Pictures
from sana_like_pipelines.recipe import plain
from sana_like_pipelines.steps import Preview
from sana_like_pipelines.stream import NoiseState, StreamState, VideoStream
from sana_like_pipelines.text import INSTRUCTION_OF_MODEL
from sana_like_pipelines.video_settings import ClipSize, check_levels
from sana_like_pipelines.whole import is_whole


class SanaLongVideoPipeline(ChunkMaking):
    """Videos of any length from a prompt, which may change on the way.

    Every chunk is made from noise with the state of what came before, and then written into it. A
    model that was trained for few steps (`video_settings.levels`) is sampled by self-forcing, any
    other by its scheduler. Sources: LongSANA, arXiv 2509.24695, section 3.3; Self Forcing,
    2506.08009.
    """

    published_class: ClassVar[str] = "SanaLongVideoPipeline"

    def _set_up(self, *args: Any) -> None:
        super()._set_up(*args)
        if not self.codec.streams:
            raise ValueError(
                f"{type(self.vae).__name__} cannot decode a stream: {self.codec.why_no_stream}; "
                "use SanaVideoPipeline for clips of limited length"
            )

    def stream(
        self,
        prompt: str | Sequence[str] | None = None,
        negative_prompt: str | Sequence[str] | None = "",
        frames: int | None = None,
        num_inference_steps: int | None = None,
        guidance_scale: float = 1.0,
        num_videos_per_prompt: int = 1,
        height: int | None = None,
        width: int | None = None,
        generator: Seeds = None,
        prompt_embeds: Tensor | TextEncoding | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt_embeds: Tensor | TextEncoding | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        output_type: str = "pil",
        attention_kwargs: dict[str, Any] | None = None,
        max_sequence_length: int | None = None,
        complex_human_instruction: Sequence[str] | str | None = INSTRUCTION_OF_MODEL,
        *,
        image: Pictures | None = None,
        image_fit: Fit = "cut",
        state: StreamState | str | Path | None = None,
        chunk: int | None = None,
        levels: Sequence[float] | None = None,
        guidance_interval: tuple[float, float] = (0.0, 1.0),
        guidance_passes: Passes = "auto",
        stg_scale: float = 0.0,
        stg_applied_layers: int | str | Sequence[int | str] | None = None,
        stg_interval: tuple[float, float] = (0.0, 1.0),
        apg_eta: float | None = None,
        apg_norm_threshold: float = 0.0,
        apg_momentum: float = 0.0,
        cancel: Callable[[], bool] | None = None,
        preview: Preview | None = None,
        preview_every: int = 1,
    ) -> VideoStream:
        """Give the frames of videos as they come.

        Arguments as in `SanaVideoPipeline`, and:

        Args:
            frames: how many; `None` goes on until the stream is closed.
            num_inference_steps: `None`: the few steps that the model was trained for, else 50. A
                number: so many steps of the scheduler.
            generator: a seed or CPU generator for each video, or one seed.
            output_type: of a frame, `"pil"`, `"np"` or `"pt"`.
            image: a picture that the videos begin with, or one for each prompt; not with `state`.
            image_fit: see `SanaImageToVideoPipeline`.
            state: `VideoStream.state` of an earlier stream, or its file: go on after it. Prompts
                that are not given anew, size, chunk and sampling are those of that stream.
            chunk: latent frames of a chunk; `None`: as in the training.
            levels: noise levels of few-step sampling, falling from 1, in place of the model's.

        Returns:
            An iterator over frames; see `VideoStream`.

        Raises:
            ValueError: an argument is refused; before anything is computed.
            WeightsError: the file of `state` is broken or of another kind.
        """
        arguments = dict(locals())
        if self._graphs is not None:
            raise ValueError(
                "CUDA graphs replay one past; make a pipeline without them for streams"
            )
        before = self._resumed(arguments)
        plan = self._plan(arguments, before)
        start = before or self._beginning(plan)
        plan.call.noise = start.noise.restore()
        return VideoStream(
            lambda stream: self._chunks(stream, plan),
            start,
            None if plan.call.inputs.prompts is None else _per_clip(plan.call),
            rate=Fraction(self.trained_for.rate),
            limit=frames,
            output_type=output_type,
            recipes=lambda stream: self._stream_recipes(plan.call, stream),
        )

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        frames: int | None = None,
        return_dict: bool = True,
        **arguments: Any,
    ) -> SanaVideoPipelineOutput | tuple[Any]:
        """Make whole clips; arguments as in `stream`, `frames` as trained for by default.

        Returns:
            Clips, their rate and recipes, and no token reports.

        Raises:
            ValueError, NonFiniteError, Cancelled: as `stream` and `VideoStream`.
        """
        kind = arguments.pop("output_type", "pil")
        count = self.trained_for.frames if frames is None else frames
        stream = self.stream(prompt, frames=count, output_type="pt", **arguments)
        made = torch.stack([_row_axis(frame) for frame in stream], dim=2)  # [B, 3, T, Y, X]
        clips = clips_as(made * 2 - 1, kind)
        if not return_dict:
            return (clips,)
        return SanaVideoPipelineOutput(frames=clips, rate=self.rate, recipe=stream.recipe)

    def _resumed(self, arguments: dict[str, Any]) -> StreamState | None:
        """The state to go on from; fills in the arguments that it knows."""
        given = arguments["state"]
        if given is None:
            return None
        for name in ("image", "generator"):
            if arguments[name] is not None:
                raise ValueError(
                    f"{name} begins a video, and state, which brings its own, goes on with one: "
                    "give one of them"
                )
        if not isinstance(given, StreamState):
            given = StreamState.load(given, self.codec, self._execution_device)
        kept = dict(given.facts.get("settings") or {})
        parameters = inspect.signature(self.stream).parameters
        for name in ("height", "width"):
            if arguments[name] not in (None, kept.get(name)):
                raise ValueError(
                    f"{name}={arguments[name]!r}: the stream that goes on has {kept.get(name)!r}, "
                    "which cannot change"
                )
        if arguments["prompt"] is None and arguments["prompt_embeds"] is None:
            kept |= {"prompt": given.facts.get("prompts"), "num_videos_per_prompt": 1}
        for name, value in kept.items():
            if name in parameters and arguments[name] == parameters[name].default:
                arguments[name] = value
        return given

    def _plan(self, arguments: dict[str, Any], before: StreamState | None) -> ChunkPlan:
        """Check everything that can be checked before computing."""
        a, native = arguments, self.trained_for
        if a["frames"] is not None:
            self.clip_size(None, None, a["frames"])
        chunk = native.chunk if a["chunk"] is None else a["chunk"]
        if not is_whole(chunk) or chunk < 1:
            raise ValueError(f"chunk={chunk!r} must be a whole number of 1 or more latent frames")
        self._check_fit()
        levels = native.levels if a["levels"] is None else check_levels(a["levels"])
        if a["num_inference_steps"] is not None:
            levels = None
        pictures = None if a["image"] is None else self._read_first(a)
        a |= {"frames": self.codec.pixel_frames(chunk), "return_dict": True, "latents": None}
        a |= {"eta": 0.0, "clean_caption": False, "use_resolution_binning": False}
        a |= {"callback_on_step_end": None, "callback_on_step_end_tensor_inputs": ("latents",)}
        if a["output_type"] == "latent":
            raise ValueError("a stream gives frames: output_type must be 'pil', 'np' or 'pt'")
        if isinstance(a["generator"], torch.Generator):
            a["generator"] = [a["generator"]]  # one stream of noise, which can be saved
        call = self._begin(a)
        if before is not None and len(before.noise.seeds) != call.inputs.batch:
            raise ValueError(
                f"the stream that goes on has {len(before.noise.seeds)} videos, this call asks for "
                f"{call.inputs.batch}"
            )
        if levels is None:
            self._run_of(call)
        branches: tuple[Branch, ...] = ("prompt",)
        if call.guidance.uses_negative:
            branches = ("negative", *branches)
        first = None if pictures is None else self._fit_first(call, pictures, a["image_fit"])
        plan = ChunkPlan(call, chunk, levels, branches, first)
        if before is not None:
            self._check_state(plan, before.transformer)
        a |= {"chunk": chunk, "levels": levels, "frames": None}
        return plan

    def _check_state(self, plan: ChunkPlan, state: State) -> None:
        wanted = self._new_state(plan, device="meta")
        if (len(state), state.grid, len(state.blocks)) != (
            len(wanted),
            wanted.grid,
            len(wanted.blocks),
        ):
            raise ValueError(
                "the state is of another model, size or guidance than this call: it has (rows, "
                f"grid, blocks) = {(len(state), state.grid, len(state.blocks))}, the call needs "
                f"{(len(wanted), wanted.grid, len(wanted.blocks))}"
            )

    def _beginning(self, plan: ChunkPlan) -> StreamState:
        call = plan.call
        noise = NoiseState.of(call.noise)
        prompts = None if call.inputs.prompts is None else _per_clip(call)
        return StreamState(self._new_state(plan), None, noise, facts=self._facts(plan, prompts, []))

    def _chunks(self, stream: VideoStream, plan: ChunkPlan) -> Iterator[tuple[Tensor, StreamState]]:
        """Make chunk after chunk, with the prompts that the stream has at its beginning."""
        call, size = plan.call, plan.call.size
        assert isinstance(size, ClipSize)
        told: list[str] | None = None
        state = replace(stream.state, skip=0)
        history = list(state.facts.get("history", []))
        with self._stepping(call):
            conditioning = self._condition(call, [self.transformer])
            told = stream.prompt
            clean = None if plan.first is None else self._encode_first(call, plan.first)
        while True:
            with self._stepping(call):
                if stream.prompt != told:
                    told = stream.prompt
                    conditioning = self._reconditioned(call, told or [])
                if told is not None and (not history or history[-1]["prompts"] != told):
                    history.append({"frame": state.frames, "prompts": told})
                latents, after = self._make_chunk(plan, conditioning, state.transformer, clean)
                clean = None
                with weights_present(self.vae):
                    decoded, cache = self.codec.decode_chunk(latents, state.decoder)
                frames = deliver_frames(decoded, size)
            facts = self._facts(plan, told, history)
            passed = state.frames + frames.shape[2]
            state = StreamState(after, cache, NoiseState.of(call.noise), passed, 0, facts)
            yield frames, state

    @contextmanager
    def _stepping(self, call: Call) -> Iterator[None]:
        """Work without gradients, and only while a chunk is made, not between two of them."""
        with torch.no_grad(), self._working(call):
            yield

    def _reconditioned(self, call: Call, prompts: list[str]) -> Conditioning:
        """Read new prompts, one for each video."""
        negatives = call.inputs.negatives
        if negatives is not None:
            times = call.inputs.per_prompt
            negatives = [text for text in negatives for _ in range(times)]
        if call.inputs.embeds is not None:
            raise ValueError("a stream that began with prompt_embeds cannot be given a new prompt")
        call.inputs = replace(
            call.inputs, prompts=prompts, negatives=negatives, count=len(prompts), per_prompt=1
        )
        return self._condition(call, [self.transformer])

    def _facts(
        self, plan: ChunkPlan, prompts: list[str] | None, history: list[dict[str, Any]]
    ) -> dict[str, Any]:
        call = plan.call
        settings = self._own(call.arguments)
        if call.inputs.negatives is not None:
            times = call.inputs.per_prompt
            rows = [text for text in call.inputs.negatives for _ in range(times)]
            settings["negative_prompt"] = rows[0] if len(set(rows)) == 1 else rows
        size = {"height": call.size.height, "width": call.size.width}
        return {
            "settings": plain({**settings, **size}),
            "prompts": prompts,
            "history": list(history),
            "model": self.name_or_path,
        }

    def _own(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Of the arguments of a chunk's call those that `stream` takes and a recipe holds."""
        names = inspect.signature(self.stream).parameters.keys() - NOT_IN_RECIPE
        return {name: value for name, value in arguments.items() if name in names}

    def _stream_recipes(self, call: Call, stream: VideoStream) -> list[dict[str, Any]]:
        recipes = self._recipes(call)
        history = stream.state.facts.get("history", [])
        for place, recipe in enumerate(recipes):
            recipe["settings"] = self._own(recipe["settings"])
            recipe["settings"]["frames"] = stream.limit or stream.delivered
            if stream.resumed_after:
                recipe["resumed_after"] = stream.resumed_after
            told = [(entry["frame"], entry["prompts"][place]) for entry in history]
            if told:
                recipe["prompt"] = told[0][1]
            changes = {str(frame): text for frame, text in told[1:]}
            if changes:
                recipe["prompts"] = changes
        return recipes


def _per_clip(call: Call) -> list[str]:
    """The prompt of each video, in the order of the batch."""
    return [text for text in call.inputs.prompts or [] for _ in range(call.inputs.per_prompt)]


def _row_axis(frame: Tensor) -> Tensor:
    return frame if frame.ndim == 4 else frame[None]
