"""Denoising clips frame by frame and chunk by chunk, as pure functions.

The network is a function `predict(latents, times, state, chunks) -> (velocity, state after)`:
`latents [B, C, F, Y, X]`, `times [B, F]` on the network's scale, `state` of the chunks before, and
the frames of each chunk in `latents`. Guidance, text and dtypes are its business. It must not
change the state it is given: a pass whose state is dropped leaves no trace.

Levels `sigma` are those of `schedulers.flow`. Sources: SANA-Video and LongSANA (arXiv 2509.24695,
section 3.3), Self Forcing (arXiv 2506.08009), staggered levels: Diffusion Forcing (arXiv
2407.01392).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from sana_like.schedulers.flow import add_noise, euler_update, shift_sigma, velocity_to_x0

TIME_SCALE = 1000.0
# Times of the published few-step models: four even steps under a shift of 8, rounded.
PUBLISHED_TIMES = (1000.0, 960.0, 889.0, 727.0)
PUBLISHED_LEVELS = tuple(time / TIME_SCALE for time in PUBLISHED_TIMES)

S = TypeVar("S")
Predict = Callable[[Tensor, Tensor, S, tuple[int, ...]], tuple[Tensor, S]]
Draw = Callable[[int], Tensor]


def chunk_lengths(frames: int, chunk: int) -> tuple[int, ...]:
    """Frames of each chunk of a clip; the first takes what does not fill a chunk (LongSANA).

    Args:
        frames: latent frames of the clip.
        chunk: latent frames of a chunk.

    Raises:
        ValueError: a count below 1.
    """
    if frames < 1 or chunk < 1:
        raise ValueError(f"{frames} frames in chunks of {chunk}: both must be 1 or more")
    whole, rest = divmod(frames, chunk)
    return (frames,) if whole == 0 else (chunk + rest, *[chunk] * (whole - 1))


def frame_times(time: float | Tensor, batch: int, frames: int, *, clean_frames: int = 0) -> Tensor:
    """Times of the frames of a clip whose first frames are clean.

    Args:
        time: of all others: 0-d or `[B]`.
        batch, frames: B and F.
        clean_frames: how many are at time 0, such as the given picture of image to video.

    Returns:
        `[B, F]` fp32.

    Raises:
        ValueError: more clean frames than frames.
    """
    if not 0 <= clean_frames <= frames:
        raise ValueError(f"{clean_frames} clean frames in a clip of {frames}")
    times = torch.as_tensor(time, dtype=torch.float32).reshape(-1, 1).repeat(1, frames)
    times = times.expand(batch, -1).clone()
    times[:, :clean_frames] = 0
    return times


def hold_frames(latents: Tensor, clean: Tensor | None) -> Tensor:
    """`[B, C, F, Y, X]` with its first frames replaced by the clean ones `[B, C, f, Y, X]`."""
    if clean is None:
        return latents
    return torch.cat([clean.to(latents.dtype), latents[:, :, clean.shape[2] :]], dim=2)


def few_step_levels(steps: int = 4, shift: float = 8.0) -> tuple[float, ...]:
    """Levels of a few-step model, highest first: even steps from 1, shifted, in thousandths.

    The defaults give the published 1000, 960, 889, 727 as levels.
    """
    even = [1 - index / steps for index in range(steps)]
    return tuple(round(TIME_SCALE * shift_sigma(level, shift)) / TIME_SCALE for level in even)


def few_step_chunk(
    predict: Predict[S],
    noise: Tensor,
    state: S,
    draw: Draw,
    *,
    levels: Sequence[float] = PUBLISHED_LEVELS,
    clean: Tensor | None = None,
    after_step: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Make the next chunk in a few steps, without a trace in the state.

    Each step predicts the clean chunk and noises it anew to the next level.

    Args:
        predict: the network.
        noise: `[B, C, F, Y, X]` unit normal, fp32.
        state: of the chunks before.
        draw: fresh noise of F frames, called between two steps.
        levels: falling, the first usually 1.
        clean: first frames that are given, `[B, C, f, Y, X]`.
        after_step: called with the index of a step and its clean prediction; may raise to stop.

    Returns:
        The clean chunk.
    """
    frames = noise.shape[2]
    given = 0 if clean is None else clean.shape[2]
    x = hold_frames(noise, clean)
    for index, level in enumerate(levels):
        times = frame_times(TIME_SCALE * level, len(x), frames, clean_frames=given)
        velocity, _ = predict(x, times.to(x.device), state, (frames,))
        x = hold_frames(velocity_to_x0(x, velocity.to(x.dtype), level), clean)
        if after_step is not None:
            after_step(index, x)
        if index + 1 < len(levels):
            x = hold_frames(add_noise(x, draw(frames).to(x), levels[index + 1]), clean)
    return x


def self_forcing_chunk(
    predict: Predict[S],
    noise: Tensor,
    state: S,
    draw: Draw,
    *,
    levels: Sequence[float] = PUBLISHED_LEVELS,
    clean: Tensor | None = None,
    after_step: Callable[[int, Tensor], None] | None = None,
) -> tuple[Tensor, S]:
    """Make the next chunk in a few steps, then write it into the state.

    All steps read the state of the chunks before; a last pass over the clean chunk, at time 0,
    makes the state after. Arguments as in `few_step_chunk`.

    Returns:
        The clean chunk and the state after it.
    """
    x = few_step_chunk(
        predict, noise, state, draw, levels=levels, clean=clean, after_step=after_step
    )
    return x, write_state(predict, x, state)


def write_state(predict: Predict[S], clean: Tensor, state: S) -> S:
    """The state after a clean chunk `[B, C, F, Y, X]`: one pass at time 0."""
    times = torch.zeros(len(clean), clean.shape[2], device=clean.device)
    return predict(clean, times, state, (clean.shape[2],))[1]


@dataclass(frozen=True)
class StaggeredStep:
    """One pass over the chunks that are in the making.

    Attributes:
        first: index of the first of them.
        levels: of each, before the pass; never lower than that of the chunk before.
        next_levels: after it; 0 for a chunk that it finishes, which can only be the first.
    """

    first: int
    levels: tuple[float, ...]
    next_levels: tuple[float, ...]


def staggered_steps(
    sigmas: Sequence[float], interval: int, chunks: int | None = None
) -> Iterator[StaggeredStep]:
    """Passes in which every chunk begins `interval` steps after the one before.

    Chunk j takes step `i - j * interval` of the schedule in pass i, so an earlier chunk is never
    noisier than a later one. An interval of all steps makes one chunk after the other; a smaller
    one shows the beginning sooner to chunks that are still being made.

    Args:
        sigmas: falling levels of one chunk, the last 0.
        interval: from 1 to the number of steps.
        chunks: how many; `None` never ends.

    Raises:
        ValueError: levels that do not fall to 0, or another interval or count.
    """
    steps = len(sigmas) - 1
    falling = all(a > b for a, b in itertools.pairwise(sigmas))
    if steps < 1 or not falling or sigmas[-1] != 0:
        raise ValueError(f"levels must fall to 0 in one step or more, got {list(sigmas)}")
    if not 1 <= interval <= steps:
        raise ValueError(f"interval is {interval}; it must be from 1 to the {steps} steps")
    if chunks is not None and chunks < 1:
        raise ValueError(f"{chunks} chunks; there must be 1 or more")
    index = first = 0
    while chunks is None or first < chunks:
        last = index // interval + 1
        active = range(first, last if chunks is None else min(last, chunks))
        local = [index - chunk * interval for chunk in active]
        yield StaggeredStep(
            first,
            tuple(sigmas[step] for step in local),
            tuple(sigmas[step + 1] for step in local),
        )
        first += local[0] == steps - 1
        index += 1


def staggered_stream(
    predict: Predict[S],
    lengths: Iterable[int],
    draw: Draw,
    state: S,
    *,
    sigmas: Sequence[float],
    interval: int,
    clean: Tensor | None = None,
    after_step: Callable[[int, Tensor], None] | None = None,
) -> Iterator[tuple[Tensor, S]]:
    """Make chunk after chunk on staggered levels, each pass over all that are in the making.

    Steps are explicit Euler, with a level for each frame. A finished chunk is written into the
    state and leaves the pass, so memory does not grow with the number of chunks.

    Args:
        predict: the network.
        lengths: frames of each chunk; may never end.
        draw: noise of some frames, called once for each chunk.
        state: before the first chunk.
        sigmas, interval: see `staggered_steps`.
        clean: first frames of the first chunk that are given, `[B, C, f, Y, X]`.
        after_step: called with the number of the pass and the chunks in the making; may raise.

    Yields:
        Each clean chunk `[B, C, F, Y, X]` and the state after it.

    Raises:
        ValueError: see `staggered_steps`.
    """
    source = iter(lengths)
    making: list[Tensor] = []
    ended, first = False, 0
    for number, step in enumerate(staggered_steps(sigmas, interval)):
        held = clean if step.first == 0 else None
        if not ended and step.first + len(step.levels) > first + len(making):
            frames = next(source, None)
            ended = frames is None
            if frames is not None:
                chunk = draw(frames)
                making.append(hold_frames(chunk, held) if first + len(making) == 0 else chunk)
        if not making:
            return
        sizes = tuple(chunk.shape[2] for chunk in making)
        x = torch.cat(making, dim=2)
        now, after = (_spread(levels, sizes, x) for levels in (step.levels, step.next_levels))
        times = TIME_SCALE * now.flatten().expand(len(x), -1).clone()
        if held is not None:
            times[:, : held.shape[2]] = 0
        velocity, _ = predict(x, times, state, sizes)
        x = hold_frames(euler_update(x, velocity.to(x.dtype), now, after), held)
        if after_step is not None:
            after_step(number, x)
        making = list(x.split(list(sizes), dim=2))
        if step.next_levels[0] == 0:
            done, first = making.pop(0), first + 1
            state = write_state(predict, done, state)
            yield done, state


def _spread(levels: Sequence[float], sizes: Sequence[int], like: Tensor) -> Any:
    """A level for each frame: `[1, 1, F, 1, 1]`."""
    pairs = zip(levels, sizes, strict=False)
    frames = [level for level, size in pairs for _ in range(size)]
    return like.new_tensor(frames).view(1, 1, -1, 1, 1)
