"""A video that is being made: frames as they come, its state between two chunks, its prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from sana_like.autoencoders.codec import VideoCodec
from sana_like.state import State, load_parts, save_parts
from sana_like.weights.errors import WeightsError
from sana_like_pipelines.clips_out import frames_as
from sana_like_pipelines.noise import NoiseSource


@dataclass(frozen=True)
class NoiseState:
    """Where the generators of a batch stand; a `Part` of a saved stream."""

    states: Tensor
    """uint8 `[B, bytes of a generator]`."""
    seeds: tuple[int | None, ...]
    """With which they began."""

    @classmethod
    def of(cls, noise: NoiseSource) -> NoiseState:
        """The present state of a source with a generator for each clip."""
        return cls(torch.stack([one.get_state() for one in noise.generators]), tuple(noise.seeds))

    def restore(self) -> NoiseSource:
        """A source that goes on from here."""
        generators: list[int | Generator] = []
        for row in self.states:
            generator = Generator("cpu")
            generator.set_state(row.clone())
            generators.append(generator)
        source = NoiseSource(generators, len(generators))
        source.seeds = list(self.seeds)
        return source

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {"states": self.states}

    def settings(self) -> dict[str, Any]:
        """What is not a tensor, as JSON values."""
        return {"seeds": list(self.seeds)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> NoiseState:
        """Inverse of `tensors` and `settings`.

        Raises:
            ValueError: they are not those of generators.
        """
        try:
            states, seeds = tensors["states"], tuple(settings["seeds"])
            expected = Generator("cpu").get_state()
            fits = states.dtype == torch.uint8 and states.shape == (len(seeds), len(expected))
        except (KeyError, TypeError) as error:
            raise ValueError(f"these are not the states of generators: {error}") from error
        if not fits:
            raise ValueError("these are not the states of this PyTorch's generators")
        return cls(states, seeds)


@dataclass(frozen=True)
class StreamState:
    """All that a stream needs to go on, between two chunks; its size does not depend on its length.

    Attributes:
        transformer: what the transformer remembers, rows of the branches of guidance one after the
            other.
        decoder: what the autoencoder remembers; `None` before the first chunk.
        noise: the generators.
        frames: of the whole chunks that have passed.
        skip: of the next chunk, how many frames have been given already.
        facts: plain values: size, chunk, prompts by frame, and the settings of the call.
    """

    transformer: State
    decoder: Any
    noise: NoiseState
    frames: int = 0
    skip: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        decoder = {} if self.decoder is None else self.decoder.tensors()
        tensors = [*self.transformer.tensors().values(), *decoder.values(), self.noise.states]
        return sum(tensor.nbytes for tensor in tensors)

    def save(self, path: str | Path) -> Path:
        """Write it as a safetensors file, whole or not at all; returns the path."""
        parts: dict[str, Any] = {"transformer": self.transformer, "noise": self.noise}
        if self.decoder is not None:
            parts["decoder"] = self.decoder
        counts = {"frames": self.frames, "skip": self.skip}
        save_parts(path, parts, {**counts, "facts": dict(self.facts)})
        return Path(path)

    @classmethod
    def load(
        cls, path: str | Path, codec: VideoCodec, device: torch.device | str = "cpu"
    ) -> StreamState:
        """Read what `save` wrote.

        Args:
            path: of the file.
            codec: of the pipeline that shall go on.
            device: where its tensors go.

        Raises:
            WeightsError: the file is broken or holds something else.
        """
        kinds: dict[str, Any] = {"transformer": State, "noise": NoiseState}
        try:
            parts, extra = load_parts(path, {**kinds, "decoder": codec.cache_type}, device)
        except WeightsError as error:
            try:  # saved before its first chunk was whole
                parts, extra = load_parts(path, kinds, device)
            except WeightsError:
                raise error from None
        noise: NoiseState = parts["noise"]
        return cls(
            parts["transformer"],
            parts.get("decoder"),
            NoiseState(noise.states.cpu(), noise.seeds),
            int(extra.get("frames", 0)),
            int(extra.get("skip", 0)),
            dict(extra.get("facts") or {}),
        )


class VideoStream:
    """Frames of a video in the making; made by `SanaLongVideoPipeline.stream`.

    Iterating gives frames one after the other; the next chunk is computed when the last frame of
    the one before has been taken. `prompt` may be set at any time, for the next chunk, and `state`
    saved, to go on after the last frame that was given; a stream that was cancelled as well.

    Args:
        chunks: gives the frames `[B, 3, T, height, width]` of each chunk, told the prompts.
        state: between two chunks.
        prompts: of the first chunk, one for each clip.
        rate: frames per second.
        limit: frames of each clip; `None` for no end.
        output_type: see `frames_as`.
        recipes: makes the recipes of the clips as they are now.
    """

    def __init__(
        self,
        chunks: Callable[[VideoStream], Iterator[tuple[Tensor, StreamState]]],
        state: StreamState,
        prompts: Sequence[str] | None,
        *,
        rate: Fraction,
        limit: int | None,
        output_type: str,
        recipes: Callable[[VideoStream], list[dict[str, Any]]],
    ) -> None:
        self.rate = rate
        self.limit = limit
        self.resumed_after = state.frames + state.skip
        """Frames that an earlier stream has given."""
        self._state, self._given = state, state.skip
        self._prompts = None if prompts is None else list(prompts)
        self._kind = output_type
        self._recipes = recipes
        self._frames = self._run(chunks)
        self.delivered = 0
        """Frames given so far."""

    @property
    def state(self) -> StreamState:
        """All that is needed to go on after the last frame that was given.

        In the middle of a chunk it is the state before that chunk, which is then made once more.
        """
        return replace(self._state, skip=self._given)

    @property
    def prompt(self) -> list[str] | None:
        """Prompts of the clips from the next chunk on; set a text, or one for each clip."""
        return None if self._prompts is None else list(self._prompts)

    @prompt.setter
    def prompt(self, value: str | Sequence[str]) -> None:
        rows = len(self.state.noise.seeds)
        texts = [value] if isinstance(value, str) else list(value)
        if len(texts) not in (1, rows) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"prompt={value!r}: give a text, or one for each of the {rows} clips")
        self._prompts = texts * (rows // len(texts))

    @property
    def seconds(self) -> float:
        """Length of what has been given so far."""
        return float(self.delivered / self.rate)

    @property
    def recipe(self) -> list[dict[str, Any]]:
        """One record per clip, with the prompts that it has had so far."""
        return self._recipes(self)

    def __iter__(self) -> VideoStream:
        return self

    def __next__(self) -> Any:
        """The next frame; of several clips a list, array or tensor with one row for each.

        Raises:
            Cancelled: `cancel` said so; `state` is still that after the last frame.
            NonFiniteError: a stage gave NaN or infinity; it is named.
        """
        return next(self._frames)

    def close(self) -> None:
        """Stop, and let the memory of the chunk in the making go."""
        self._frames.close()  # type: ignore[attr-defined]

    def _run(
        self, chunks: Callable[[VideoStream], Iterator[tuple[Tensor, StreamState]]]
    ) -> Iterator[Any]:
        for frames, after in chunks(self):
            single = len(frames) == 1
            count = frames.shape[2]
            for place in range(self._given, count):
                if self.delivered == self.limit:
                    return
                self.delivered += 1
                # Before the frame is given, since the caller may look at the state with it.
                last = place + 1 == count
                self._state, self._given = (after, 0) if last else (self._state, place + 1)
                made = frames_as(frames[:, :, place], self._kind)  # of [B, 3, height, width]
                yield made[0] if single else made
            if self.delivered == self.limit:
                return
