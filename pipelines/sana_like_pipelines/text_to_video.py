"""Text to video with SANA-Video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sana_like.text.encoding import TextEncoding
from sana_like_pipelines.memory import Passes
from sana_like_pipelines.noise import Seeds
from sana_like_pipelines.outputs import SanaVideoPipelineOutput
from sana_like_pipelines.steps import Callback, Preview
from sana_like_pipelines.text import INSTRUCTION_OF_MODEL
from sana_like_pipelines.video_base import VideoPipeline


class SanaVideoPipeline(VideoPipeline):
    """Clips from a prompt.

    Source: SANA-Video, arXiv 2509.24695. The arguments are diffusers', with `guidance_*`, `stg_*`,
    `apg_*`, `first_block_cache`, `cancel` and `preview*` besides.
    """

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        negative_prompt: str | Sequence[str] | None = "",
        num_inference_steps: int = 50,
        timesteps: Sequence[float] | None = None,
        sigmas: Sequence[float] | None = None,
        guidance_scale: float = 6.0,
        num_videos_per_prompt: int = 1,
        height: int | None = None,
        width: int | None = None,
        frames: int | None = None,
        eta: float = 0.0,
        generator: Seeds = None,
        latents: Tensor | None = None,
        prompt_embeds: Tensor | TextEncoding | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt_embeds: Tensor | TextEncoding | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        clean_caption: bool = False,
        use_resolution_binning: bool = False,
        attention_kwargs: dict[str, Any] | None = None,
        callback_on_step_end: Callback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
        max_sequence_length: int | None = None,
        complex_human_instruction: Sequence[str] | str | None = INSTRUCTION_OF_MODEL,
        *,
        guidance_interval: tuple[float, float] = (0.0, 1.0),
        guidance_passes: Passes = "auto",
        stg_scale: float = 0.0,
        stg_applied_layers: int | str | Sequence[int | str] | None = None,
        stg_interval: tuple[float, float] = (0.0, 1.0),
        apg_eta: float | None = None,
        apg_norm_threshold: float = 0.0,
        apg_momentum: float = 0.0,
        first_block_cache: float | None = None,
        cancel: Callable[[], bool] | None = None,
        preview: Preview | None = None,
        preview_every: int = 1,
    ) -> SanaVideoPipelineOutput | tuple[Any]:
        """Make clips: P prompts times `num_videos_per_prompt`, in the order a a b b.

        Args:
            prompt: one text or P of them; `""` is the unconditional text, `None` is refused.
            negative_prompt: one text for all prompts, or P of them. Read where `guidance_scale` is
                above 1.
            num_inference_steps: steps, from 1.
            timesteps, sigmas: levels instead of a count, highest first; shifted no more.
            guidance_scale: weight of the prompt against the negative prompt; 1 and less turn it
                off.
            num_videos_per_prompt: clips for each prompt.
            height, width: in pixels, any int from 1. The work is done at the next multiple of the
                model's grid and the middle of it delivered. `None`: the size of the training.
            frames: any int from 1. The work is done at the next count that the autoencoder knows,
                and the end cut off. `None`: the length of the training.
            eta: only 0.
            generator: a seed or CPU generator for each clip; or one seed, of which the clips get
                successors; or one generator, from which they draw in turn; see `NoiseSource`.
            latents: `[B, Z, t, y, x]`, start noise instead of drawn noise.
            prompt_embeds, prompt_attention_mask: `[P, L, C]` and `[P, L]` instead of `prompt`; the
                former may be a `TextEncoding`, which holds both.
            negative_prompt_embeds, negative_prompt_attention_mask: `[P, L, C]` and `[P, L]`, or one
                row for all, instead of `negative_prompt`.
            output_type: `"pil"`, `"np"`, `"pt"` or `"latent"`; see `SanaVideoPipelineOutput`.
            return_dict: an output object, or the tuple `(frames,)`.
            clean_caption: only `False`: prompts are read as typed.
            use_resolution_binning: only `False`: any size is delivered exactly.
            attention_kwargs: `{"scale": ...}`, weight of LoRA adapters in this call.
            callback_on_step_end: `callback(pipe, step, timestep, tensors)` after every step; may
                return changed tensors, set `pipe.interrupt = True` or `pipe._guidance_scale`.
            callback_on_step_end_tensor_inputs: which tensors it gets: `latents`, `prompt_embeds`,
                `negative_prompt_embeds` and their `..._attention_mask`, with B rows.
            max_sequence_length: limit of a prompt's tokens; `None`: the model's own.
            complex_human_instruction: text or lines that the encoder reads before the prompt;
                `None` for none; by default what the model was trained with.
            guidance_interval: (start, end) as fractions of the steps in which guidance acts.
            guidance_passes: all branches of guidance in one batch (`"batched"`), one after the
                other (`"sequential"`), or the former where the memory allows (`"auto"`).
            stg_scale: weight of spatio-temporal skip guidance; 0 turns it off.
            stg_applied_layers: blocks that it skips, by number, name or expression; `None`: the
                middle one.
            stg_interval: (start, end) as fractions of the steps in which it acts.
            apg_eta: adaptive projected guidance: weight of what of a guided step points along the
                clip itself; `None` turns the projection off.
            apg_norm_threshold: longest guided step, as the norm over a clip; 0 is without limit.
            apg_momentum: how much of the step before is added, usually negative.
            first_block_cache: skip blocks in steps in which the first block changes by less than
                this share; `None` skips none. See `FirstBlockCache`.
            cancel: asked before every step; true ends the call with `Cancelled`.
            preview: `preview(steps done, steps, small pictures)` of the frames in the middle.
            preview_every: steps between previews.

        Returns:
            Clips, their rate and recipes, and token reports.

        Raises:
            ValueError: an argument is refused; before anything is computed.
            NonFiniteError: a stage gave NaN or infinity; it is named.
            Cancelled: `cancel` said so.
            DecodeMemoryError: the autoencoder does not fit the memory.
        """
        call = self._begin(dict(locals()))
        run = self._flow_run(call)
        with self._working(call):
            conditioning = self._condition(call, [self.transformer])
            velocity = self._clip_velocity(call, conditioning, run)
            noise = self._start_noise(call)
            latents, _ = self._denoise(call, conditioning, run, noise, velocity)
            return self._deliver_clips(call, latents)
