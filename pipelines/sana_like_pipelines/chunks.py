"""Making the chunks of a stream: each from noise, on the state of what came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sana_like.finite import require_finite
from sana_like.schedulers.chunked import frame_times, hold_frames, self_forcing_chunk
from sana_like.state import State
from sana_like_pipelines.calls import Call
from sana_like_pipelines.conditioning import Conditioning
from sana_like_pipelines.given_frame import FromFirstFrame
from sana_like_pipelines.guidance import Branch
from sana_like_pipelines.steps import SchedulerRun, steps_or_levels

MANY_STEPS = 50
"""Of the scheduler, for a model that was not trained for few."""


@dataclass
class ChunkPlan:
    """How every chunk of a stream is made."""

    call: Call
    frames: int
    """Latent frames of a chunk."""
    levels: tuple[float, ...] | None
    """Of the few-step sampler; `None` for the scheduler's steps."""
    branches: tuple[Branch, ...]
    """That have a state of their own."""
    first: Tensor | None
    """Pictures `[P, 3, height, width]` that the clips begin with."""


class ChunkMaking(FromFirstFrame):
    """Adds the making of chunks to a pipeline."""

    def _run_of(self, call: Call) -> SchedulerRun:
        """A fresh run of the scheduler, for one chunk."""
        self._check_fit()
        steps = call.arguments["num_inference_steps"]
        choice = steps_or_levels(MANY_STEPS if steps is None else steps, None)
        return SchedulerRun(self.scheduler, call.noise, call.device, choice)

    def _new_state(self, plan: ChunkPlan, device: Any = None) -> State:
        grid = self._latent_grid(plan.call.size)
        rows = len(plan.branches) * plan.call.inputs.batch
        return self.transformer.new_state(rows, *grid, device=device or plan.call.device)

    def _make_chunk(
        self, plan: ChunkPlan, conditioning: Conditioning, state: State, clean: Tensor | None
    ) -> tuple[Tensor, State]:
        """The next latent frames `[B, Z, t, y, x]` and the state after them."""
        call = plan.call
        noise = self._draw(plan, plan.frames)
        steps = len(plan.levels) if plan.levels is not None else len(self._run_of(call).timesteps)
        total = self._num_timesteps = steps
        if plan.levels is None:
            latents = self._by_scheduler(plan, conditioning, state, noise, clean)
            return latents, self._written(plan, conditioning, latents, state)

        progress = {"step": 0}

        def predict(
            x: Tensor, times: Tensor, before: State, _: tuple[int, ...]
        ) -> tuple[Tensor, State]:
            if not bool(times.any()):  # the clean pass, which writes the state
                return x, self._written(plan, conditioning, x, before)
            step = progress["step"]
            call.hooks.check_cancel(step, total)
            velocity = self._guided(plan, conditioning, before, x, times, step, total)
            require_finite(velocity, f"step {step + 1} of {total}", self.transformer.dtype)
            progress["step"] += 1
            return velocity, before

        def after_step(step: int, predicted: Tensor) -> None:
            if call.hooks.wants_preview(step + 1, total):
                self._preview(call, step + 1, total, predicted)

        return self_forcing_chunk(
            predict,
            noise,
            state,
            lambda frames: self._draw(plan, frames),
            levels=plan.levels,
            clean=clean,
            after_step=after_step,
        )

    def _by_scheduler(
        self,
        plan: ChunkPlan,
        conditioning: Conditioning,
        state: State,
        noise: Tensor,
        clean: Tensor | None,
    ) -> Tensor:
        """A chunk by all steps of the scheduler, the state unchanged."""
        call = plan.call
        run = self._run_of(call)
        given = 0 if clean is None else clean.shape[2]

        def predict(latents: Tensor, timestep: Tensor, step: int) -> Tensor:
            times = frame_times(timestep, len(latents), latents.shape[2], clean_frames=given)
            times = times.to(latents.device)
            total = len(run.timesteps)
            return self._guided(plan, conditioning, state, latents, times, step, total)

        latents, _ = self._denoise(
            call, conditioning, run, hold_frames(noise, clean), predict,
            lambda x, _: hold_frames(x, clean),
        )  # fmt: skip
        return latents

    def _guided(
        self,
        plan: ChunkPlan,
        conditioning: Conditioning,
        state: State,
        latents: Tensor,
        times: Tensor,
        step: int,
        steps: int,
    ) -> Tensor:
        """The guided velocity of a chunk, fp32; every branch reads its own past."""
        call = plan.call

        def past(_: Tensor, branches: tuple[Branch, ...]) -> State:
            return _rows_of(state, plan.branches, branches, call.inputs.batch)

        network = self._network(call, conditioning, times, state=past)
        time = float(times.max()) if call.guidance.projection is not None else 1000.0
        return call.guidance.predict(network, latents, step=step, steps=steps, time=time)

    def _written(
        self, plan: ChunkPlan, conditioning: Conditioning, clean: Tensor, state: State
    ) -> State:
        """The state after a clean chunk: one pass at time 0, over all branches that have one."""
        dtype = self.transformer.dtype
        rows = torch.cat([clean.to(dtype)] * len(plan.branches))
        return self.transformer(
            rows, conditioning[0][plan.branches], 0.0, state=state, return_dict=False
        )[1]

    def _draw(self, plan: ChunkPlan, frames: int) -> Tensor:
        """Noise of some latent frames `[B, Z, frames, y, x]`, fp32."""
        grid = self._latent_grid(plan.call.size)
        shape = (self.codec.latent_channels, frames, *grid)
        return plan.call.noise.draw(shape, plan.call.device)


def _rows_of(state: State, kept: Sequence[Branch], wanted: Sequence[Branch], batch: int) -> State:
    """Rows of a state for the branches of a pass; a perturbed branch has the prompt's past."""
    if tuple(kept) == tuple(wanted):
        return state
    places = [kept.index("prompt" if branch == "perturbed" else branch) for branch in wanted]
    return State.cat([state.rows(slice(at * batch, (at + 1) * batch)) for at in places])
