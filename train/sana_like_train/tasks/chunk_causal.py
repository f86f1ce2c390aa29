"""Clips chunk by chunk: a transformer as the samplers see it, and its block-causal objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sana_like.schedulers.chunked import (
    TIME_SCALE,
    chunk_lengths,
    frame_times,
    hold_frames,
    write_state,
)
from sana_like.schedulers.flow import euler_update
from sana_like.state import State, chunk_spans
from sana_like_train.tasks.flow_matching import FlowMatchingObjective, guide


class ChunkPredictor:
    """A video transformer with its text as the function that `schedulers.chunked` asks for.

    Args:
        model: a `SanaVideoTransformer3DModel`.
        text: `[B, L, C]`; with guidance `[2B, L, C]`, the empty captions first.
        mask: `[B, L]` or `[2B, L]`.
        guidance: weight of the captions; none takes the text as it is. Guided rows have each a
            past of their own, with the caption and without.
    """

    def __init__(
        self, model: Any, text: Tensor, mask: Tensor, guidance: float | None = None
    ) -> None:
        self.model = model
        self.text = text
        self.mask = mask
        self.guidance = guidance

    def new_state(self, latents: Tensor) -> State:
        """The state before the first chunk of latents `[B, Z, F, y, x]`."""
        rows, (height, width) = len(self.text), latents.shape[-2:]
        return self.model.new_state(rows, height, width, device=latents.device)

    def __call__(
        self, latents: Tensor, times: Tensor, state: State, chunks: Sequence[int]
    ) -> tuple[Tensor, State]:
        """Velocity `[B, Z, F, y, x]` fp32 and the state after, see `schedulers.chunked`."""
        if self.guidance is not None:
            latents, times = torch.cat([latents, latents]), torch.cat([times, times])
        out = self.model(
            latents,
            self.text,
            times,
            encoder_attention_mask=self.mask,
            state=state,
            chunks=chunks,
        )
        velocity = out.sample.float()
        if self.guidance is not None:
            velocity = guide(velocity, self.guidance)
        return velocity, out.state


class ChunkCausalObjective(FlowMatchingObjective):
    """Flow matching in which frames read their own chunk and those before.

    Args:
        model: a `SanaVideoTransformer3DModel`.
        chunk: latent frames of a chunk; the first takes what does not fill one.
        temporal_weight: see `FlowMatchingObjective`.
    """

    def __init__(self, model: Any, chunk: int, temporal_weight: float = 0.0) -> None:
        super().__init__(model, temporal_weight=temporal_weight)
        self.chunk = chunk

    def velocity(self, batch: dict[str, Tensor], noisy: Tensor) -> Tensor:
        """Velocity at the noisy latents of a batch.

        Args:
            batch: as in `forward`, with `clean_past`, a scalar: whether the chunks before are the
                clean ones of `latents`, as when a video is made; by default they are. Else they are
                those of `noisy`, in one pass under the block-causal mask.
            noisy: `[B, Z, F, y, x]`.
        """
        predict = ChunkPredictor(self.model, batch["text"], batch["text_mask"])
        frames = noisy.shape[2]
        times = TIME_SCALE * batch["sigmas"].view(len(noisy), -1).expand(-1, frames)
        chunks, state = chunk_lengths(frames, self.chunk), predict.new_state(noisy)
        if not batch.get("clean_past", True):
            return predict(noisy, times, state, chunks)[0]
        parts = []
        for span in chunk_spans(chunks):
            length = (span.stop - span.start,)
            parts.append(predict(noisy[:, :, span], times[:, span], state, length)[0])
            if span.stop < frames:
                state = write_state(predict, batch["latents"][:, :, span], state)
        return torch.cat(parts, dim=2)


def many_step_chunk(
    predict: ChunkPredictor,
    noise: Tensor,
    state: State,
    sigmas: Sequence[float],
    *,
    clean: Tensor | None = None,
    after_step: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """The next chunk `[B, Z, F, y, x]` by explicit Euler steps, without a trace in the state.

    Args:
        predict: the network.
        noise: unit normal.
        state: of the chunks before.
        sigmas: falling levels, the last 0.
        clean: first frames that are given, `[B, Z, f, y, x]`.
        after_step: called with the index of a step and the chunk after it.
    """
    frames, given = noise.shape[2], 0 if clean is None else clean.shape[2]
    x = hold_frames(noise, clean)
    for index, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        times = frame_times(TIME_SCALE * sigma, len(x), frames, clean_frames=given).to(x.device)
        velocity, _ = predict(x, times, state, (frames,))
        x = hold_frames(euler_update(x, velocity, sigma, sigma_next), clean)
        if after_step is not None:
            after_step(index, x)
    return x


def make_video(
    predict: ChunkPredictor,
    noise: Tensor,
    chunk: int,
    make_chunk: Callable[[Tensor, State, Tensor | None], Tensor],
    first: Tensor | None = None,
) -> Tensor:
    """A video chunk by chunk, each on the state of those before.

    Args:
        predict: writes the states.
        noise: of all frames, `[B, Z, F, y, x]`.
        chunk: latent frames of a chunk.
        make_chunk: `(noise, state, given frames or none) -> chunk`.
        first: first latent frame that is given, `[B, Z, 1, y, x]`.

    Returns:
        `[B, Z, F, y, x]`.
    """
    chunks = chunk_lengths(noise.shape[2], chunk)
    state, made = predict.new_state(noise), []
    for span in chunk_spans(chunks):
        given = first if span.start == 0 else None
        made.append(make_chunk(noise[:, :, span], state, given))
        if span.stop < noise.shape[2]:
            state = write_state(predict, made[-1], state)
    return torch.cat(made, dim=2)
