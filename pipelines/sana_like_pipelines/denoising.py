"""The loop over steps and what a pipeline shows of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from sana_like.finite import require_finite
from sana_like_pipelines.calls import Call
from sana_like_pipelines.conditioning import Conditioning
from sana_like_pipelines.guidance import Branch, Network, perturbed_rows
from sana_like_pipelines.steps import SchedulerRun
from sana_like_pipelines.text import TextReading


class Denoising(TextReading):
    """Adds the steps of a call; what they need of one call is in the `Call`."""

    takes_negative: ClassVar[bool] = True
    """Whether there is a negative prompt."""

    _evaluate: Callable[..., tuple[Tensor]]
    """The transformer's `forward`; see `SpeedMixin`."""
    _interrupt = False
    _guidance_scale = 1.0
    _num_timesteps = 0

    @property
    def guidance_scale(self) -> float:
        """Guidance of the latest call; a callback may change it by setting `_guidance_scale`."""
        return self._guidance_scale

    @property
    def do_classifier_free_guidance(self) -> bool:
        """Whether the latest call reads the negative prompt."""
        return self.takes_negative and self._guidance_scale > 1

    @property
    def num_timesteps(self) -> int:
        """Evaluations of the latest call."""
        return self._num_timesteps

    @property
    def interrupt(self) -> bool:
        """Set it true, in a callback, to stop stepping and get the picture as it is then."""
        return self._interrupt

    @interrupt.setter
    def interrupt(self, value: bool) -> None:
        self._interrupt = value

    def _network(
        self, call: Call, conditioning: Conditioning, timestep: Tensor, **extras: Any
    ) -> Network:
        """The transformer at one timestep, for any set of branches.

        Args:
            call: the call.
            conditioning: text of the transformer, as its model 0.
            timestep: 0-d, as the model is told it; or `[B, F]` for the latent frames of clips.
            **extras: further arguments of the transformer, or functions that make them from the
                latents and branches.
        """
        transformer, channels = self.transformer, self.transformer.config.in_channels

        def run(latents: Tensor, branches: tuple[Branch, ...]) -> Tensor:
            rows = perturbed_rows(branches, call.inputs.batch, latents.device)
            spared = () if rows is None else call.guidance.pag_layers
            perturbed = {
                "skipped_layers" if call.guidance.skips_blocks else "perturbed_layers": spared
            }
            told = timestep.repeat(len(branches), 1) if timestep.ndim == 2 else timestep
            arguments = {
                name: value(latents, branches) if callable(value) else value
                for name, value in extras.items()
            }
            if call.block_cache is not None:
                arguments["block_cache"] = call.block_cache.for_pass(branches)
            with ExitStack() as stack:
                if getattr(transformer, "is_cache_enabled", False):
                    stack.enter_context(transformer.cache_context("+".join(branches)))
                output = self._evaluate(
                    latents.to(transformer.dtype),
                    conditioning[0][branches],
                    timestep=told,
                    perturbed_rows=rows,
                    return_dict=False,
                    **perturbed,
                    **arguments,
                )[0]
            # Models that also predict a variance give it in the second half.
            return output[:, :channels] if output.shape[1] == 2 * channels else output

        return run

    def _denoise(
        self,
        call: Call,
        conditioning: Conditioning,
        run: SchedulerRun,
        latents: Tensor,
        predict: Callable[[Tensor, Tensor, int], Tensor],
        after_step: Callable[[Tensor, int], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Step through `run`.

        Args:
            call: the call.
            conditioning: text of the models, which a callback may change.
            run: the sampler.
            latents: `[B, Z, y, x]` fp32 to start from.
            predict: prediction for (latents, timestep, number of the step).
            after_step: changes the latents after a step, given its number.

        Returns:
            The last latents, and the last clean ones that were predicted.

        Raises:
            NonFiniteError, Cancelled: as they say.
        """
        timesteps = run.timesteps
        total = self._num_timesteps = len(timesteps)
        clean = latents
        with self.progress_bar(total=total) as bar:
            for step, timestep in enumerate(timesteps):
                call.hooks.check_cancel(step, total)
                if self._interrupt:
                    break
                if call.block_cache is not None:
                    call.block_cache.begin_step(step, total)
                output = predict(latents, timestep, step)
                require_finite(output, f"step {step + 1} of {total}", self.transformer.dtype)
                latents, clean = run.step(output, timestep, latents)
                if after_step is not None:
                    latents = after_step(latents, step)
                latents = self._call_back(call, conditioning, step, timestep, latents)
                if call.hooks.wants_preview(step + 1, total):
                    self._preview(call, step + 1, total, clean)
                bar.update()
        call.hooks.check_cancel(total, total)
        return latents, clean

    def _preview(self, call: Call, done: int, total: int, clean: Tensor) -> None:
        if call.hooks.preview is not None and self.latent_rgb is not None:
            call.hooks.preview(done, total, self.latent_rgb.pictures(clean))

    def _call_back(
        self, call: Call, conditioning: Conditioning, step: int, timestep: Tensor, latents: Tensor
    ) -> Tensor:
        """Let the caller see and change tensors; every change that is accepted takes effect."""
        callback, names = call.hooks.callback_on_step_end, call.hooks.tensor_inputs
        if callback is None:
            return latents
        shown: dict[str, Any] = {"latents": latents}
        if set(names) - {"latents"}:
            shown |= conditioning.tensors()
        before = self._guidance_scale
        changes = dict(callback(self, step, timestep, {name: shown[name] for name in names}) or {})
        unknown = sorted(set(changes) - set(names))
        if unknown:
            raise ValueError(
                f"the callback returned {unknown}; it may return what it was given: {list(names)}"
            )
        if self._guidance_scale != before:
            call.guidance = replace(call.guidance, scale=self._guidance_scale)
        changed = changes.pop("latents", latents)
        if changed.shape != latents.shape:
            raise ValueError(
                f"the callback returned latents of shape {list(changed.shape)}; they must keep "
                f"{list(latents.shape)}"
            )
        conditioning.update(changes)
        return changed
