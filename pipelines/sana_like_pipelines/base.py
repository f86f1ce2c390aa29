"""What all pipelines do in a call: read the prompt, step, decode, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sana_like.text.settings import TextSettings
from sana_like.transformers.first_block_cache import FirstBlockCache
from sana_like_pipelines.calls import NOT_IN_RECIPE, Call, check_latents, refuse_unused
from sana_like_pipelines.conditioning import Conditioning
from sana_like_pipelines.decode import decode_latents
from sana_like_pipelines.denoising import Denoising
from sana_like_pipelines.guidance import Guidance, choose_layers
from sana_like_pipelines.lora import LoraMixin
from sana_like_pipelines.memory import MemoryMixin
from sana_like_pipelines.noise import NoiseSource
from sana_like_pipelines.outputs import SanaPipelineOutput
from sana_like_pipelines.pixels import to_output
from sana_like_pipelines.preview import LatentRGB
from sana_like_pipelines.prompts import PromptInputs, check_prompts
from sana_like_pipelines.recipe import describe_scheduler, make_recipes
from sana_like_pipelines.sizes import PictureSize, binned_size, plan_size
from sana_like_pipelines.speed import SpeedMixin
from sana_like_pipelines.steps import StepHooks


class SanaBase(Denoising, LoraMixin, MemoryMixin, SpeedMixin):
    """Base of the pipelines; subclasses write `__call__`."""

    _callback_tensor_inputs: ClassVar[list[str]] = [
        "latents",
        "prompt_embeds",
        "prompt_attention_mask",
        "negative_prompt_embeds",
        "negative_prompt_attention_mask",
    ]
    _count_argument: ClassVar[str] = "num_images_per_prompt"
    """Which argument of `__call__` says how many outputs a prompt gets."""

    def __init__(
        self,
        tokenizer: Any,
        text_encoder: Any,
        vae: Any,
        transformer: Any,
        scheduler: Any,
        text_settings: TextSettings | None = None,
        latent_rgb: LatentRGB | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(
            tokenizer=tokenizer,
            text_encoder=text_encoder,
            vae=vae,
            transformer=transformer,
            scheduler=scheduler,
        )
        self._set_up(text_settings, latent_rgb)

    def _set_up(self, text_settings: TextSettings | None, latent_rgb: LatentRGB | None) -> None:
        self.text_settings = text_settings
        self.latent_rgb = latent_rgb
        if not hasattr(self.transformer, "prepare_text"):
            kind = type(self.transformer)
            raise ValueError(
                f"the transformer is {kind.__module__}.{kind.__name__}, which cannot be used here: "
                "load the same weights with sana_like.SanaTransformer2DModel.from_pretrained"
            )
        channels, expected = self._latent_channels(), self.transformer.config.in_channels
        if channels != expected:
            raise ValueError(
                f"the autoencoder has {channels} latent channels, the transformer reads {expected}"
            )
        if self.text_encoder is not None:
            width = self.text_encoder.config.get_text_config().hidden_size
            expected = self.transformer.config.caption_channels
            if width != expected:
                raise ValueError(
                    f"the text encoder has width {width}, the transformer reads {expected}"
                )

    def _latent_channels(self) -> int:
        """Z of the autoencoder."""
        return int(self.vae.config.latent_channels)

    @property
    def grid(self) -> int:
        """Pixels per side of a cell of the transformer's grid."""
        return int(self.vae.spatial_compression_ratio * self.transformer.config.patch_size)

    def picture_size(
        self, height: int | None = None, width: int | None = None, binning: bool = False
    ) -> PictureSize:
        """The size that is delivered and the one that is worked on.

        Args:
            height, width: in pixels, any int from 1; `None` means the size of the training.
            binning: work on the nearest trained size and resize, as diffusers does.

        Raises:
            ValueError: a side is not a positive int; the message names the nearest legal sizes.
        """
        sample_size = self.transformer.config.sample_size
        native = sample_size * self.vae.spatial_compression_ratio
        height, width = (native if side is None else side for side in (height, width))
        if binning:
            return binned_size(height, width, self.grid, sample_size)
        return plan_size(height, width, self.grid)

    def _begin(self, arguments: dict[str, Any]) -> Call:
        """Check the arguments of a call; nothing heavy happens before all of them are accepted.

        Args:
            arguments: `locals()` of `__call__`, so that the recipe can forget none.
        """
        a = arguments
        refuse_unused(a)
        size = self._asked_size(a)
        inputs = check_prompts(
            a["prompt"], a.get("negative_prompt"), a["prompt_embeds"], a["prompt_attention_mask"],
            a.get("negative_prompt_embeds"), a.get("negative_prompt_attention_mask"),
            a[self._count_argument], self._count_argument,
        )  # fmt: skip
        guidance = self._guidance(a)
        if "guidance_passes" in a:
            passes = self.passes_that_fit(
                a["guidance_passes"], size, inputs.batch, guidance.branches
            )
            # The recipe says what was done, so that a rerun does the same.
            a["guidance_passes"] = passes
            guidance = replace(guidance, batched=passes == "batched")
        hooks = StepHooks(
            a["callback_on_step_end"], a["callback_on_step_end_tensor_inputs"], a["cancel"],
            a["preview"], a["preview_every"],
        )  # fmt: skip
        self._check_parts(inputs, guidance, hooks)
        text = self.active_text_settings(a["max_sequence_length"], a["complex_human_instruction"])
        noise = NoiseSource(a["generator"], inputs.batch)
        check_latents(a["latents"], self._latent_shape(size, inputs.batch))
        cache = self._block_cache(a.get("first_block_cache"))
        self._interrupt, self._guidance_scale = False, a["guidance_scale"]
        device = self._execution_device
        return Call(a, inputs, size, guidance, hooks, noise, text, device, {}, block_cache=cache)

    def _asked_size(self, arguments: Mapping[str, Any]) -> PictureSize:
        """The size that a call means."""
        a = arguments
        return self.picture_size(a["height"], a["width"], a["use_resolution_binning"])

    def _block_cache(self, threshold: float | None) -> FirstBlockCache | None:
        if threshold is None:
            return None
        if getattr(self.transformer, "is_cache_enabled", False):
            raise ValueError(
                "first_block_cache does not go together with a cache of diffusers': call "
                "pipe.transformer.disable_cache() first"
            )
        return FirstBlockCache(threshold)

    def _guidance(self, arguments: Mapping[str, Any]) -> Guidance:
        pag_scale = arguments["pag_scale"]
        layers: tuple[int, ...] = ()
        if pag_scale:
            blocks = len(self.transformer.transformer_blocks)
            layers = choose_layers(arguments["pag_applied_layers"], blocks)
        return Guidance(
            scale=arguments["guidance_scale"],
            interval=arguments["guidance_interval"],
            pag_scale=pag_scale,
            pag_adaptive_scale=arguments["pag_adaptive_scale"],
            pag_layers=layers,
        )

    def _check_parts(self, inputs: PromptInputs, guidance: Guidance, hooks: StepHooks) -> None:
        """Refuse a call that needs a part which this pipeline was loaded without."""
        if self.text_encoder is None or self.tokenizer is None:
            if inputs.prompts is not None:
                raise ValueError(
                    "this pipeline was loaded without a text encoder: give prompt_embeds and "
                    "prompt_attention_mask instead of prompt"
                )
            if self.takes_negative and guidance.uses_negative and inputs.negative_embeds is None:
                raise ValueError(
                    "guidance_scale above 1 reads a negative prompt, and this pipeline was loaded "
                    "without a text encoder: give negative_prompt_embeds and "
                    "negative_prompt_attention_mask, or guidance_scale=1"
                )
        if hooks.preview is not None and self.latent_rgb is None:
            raise ValueError(
                "previews need a latent_rgb map, and this model comes without: set "
                "pipe.latent_rgb = fit_latent_rgb(pipe.vae, pictures)"
            )

    def _latent_shape(self, size: PictureSize, batch: int) -> tuple[int, ...]:
        ratio = self.vae.spatial_compression_ratio
        channels = self.transformer.config.in_channels
        return (batch, channels, size.work_height // ratio, size.work_width // ratio)

    @contextmanager
    def _working(self, call: Call) -> Iterator[None]:
        """LoRA scaled as asked during the call; offloaded models sent home after it."""
        with ExitStack() as stack:
            stack.callback(self.maybe_free_model_hooks)
            stack.enter_context(self._lora_scaled(call.arguments["attention_kwargs"]))
            self._begin_evaluations(call.arguments.get("first_block_cache"))
            yield

    def _condition(self, call: Call, models: Sequence[Any]) -> Conditioning:
        """Read the prompts, and project them for every model that reads text."""
        use_negative = self.takes_negative and call.guidance.uses_negative
        call.features = self._encode(call.inputs, call.text, use_negative, call.device)
        return Conditioning(models, call.features, call.inputs.per_prompt)

    def _start_noise(self, call: Call) -> Tensor:
        """Latents to start from `[B, Z, y, x]`, fp32: those given, or noise of the seeds."""
        shape = self._latent_shape(call.size, call.inputs.batch)
        given = call.arguments["latents"]
        if given is not None:
            return given.to(call.device, torch.float32)
        return call.noise.draw(shape[1:], call.device)

    def _deliver(
        self, call: Call, latents: Tensor, finish: Callable[[Tensor], Tensor] | None = None
    ) -> SanaPipelineOutput | tuple[Any]:
        """Decode, cut to the size asked for, and write the recipes.

        Args:
            call: the call.
            latents: `[B, Z, y, x]` as the transformer sees them.
            finish: changes the pictures `[B, 3, height, width]`, fp32 in about [-1, 1].
        """
        self._end_evaluations(call.inputs.batch)
        kind = call.arguments["output_type"]
        images: Any = latents
        if kind != "latent":
            pictures, tiles = decode_latents(self.vae, latents)
            if tiles is not None:
                call.context["decoded_in_tiles"] = [tiles.height, tiles.width]
            pictures = call.size.deliver(pictures).float()
            images = to_output(pictures if finish is None else finish(pictures), kind)
        if not call.arguments["return_dict"]:
            return (images,)
        assert call.features is not None
        return SanaPipelineOutput(
            images=images, recipe=self._recipes(call), reports=list(call.features.reports)
        )

    def _recipes(self, call: Call) -> list[dict[str, Any]]:
        settings = {k: v for k, v in call.arguments.items() if k not in NOT_IN_RECIPE}
        settings |= {"height": call.size.height, "width": call.size.width}
        nothing: list[None] = [None] * call.inputs.count
        modules = {
            name: str(part.dtype).removeprefix("torch.")
            for name, part in self.components.items()
            if isinstance(part, torch.nn.Module)
        }
        return make_recipes(
            pipeline=type(self).__name__,
            model=self.name_or_path,
            prompts=call.inputs.prompts or nothing,
            negatives=(call.inputs.negatives or nothing) if self.takes_negative else nothing,
            seeds=call.noise.seeds,
            settings=settings,
            context={
                "latents_given": call.arguments["latents"] is not None,
                "scheduler": describe_scheduler(self.scheduler),
                "text": None if call.inputs.prompts is None else call.text.to_dict(),
                "dtype": modules,
                "device": call.device.type,
                "adapters": self.lora_scales(),
                **({"speed": speed} if (speed := self.speed_record()) else {}),
                **call.context,
            },
            pictures=_of_pictures(call),
        )


def _of_pictures(call: Call) -> list[dict[str, Any]]:
    """What the recipe says of each picture of a call alone."""
    if call.block_cache is None or not call.block_cache.blocks_run:
        return [{}] * call.inputs.batch
    return [
        {"first_block_cache": call.block_cache.record(picture)}
        for picture in range(call.inputs.batch)
    ]
