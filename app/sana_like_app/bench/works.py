"""What is measured: one work of ours and diffusers' on the same random weights.

Both models hold the very same tensors, so that there is one copy of the weights, and each is asked
as its own pipeline would ask it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Any]
Run = Callable[[Any, Inputs], Tensor]

# Text slots of the published pipelines, and how many of them the prompt fills; the empty negative
# prompt fills one.
SLOTS, PROMPT_TOKENS = 300, 40
EXACT = 1e-5


@dataclass
class Work:
    """One comparison.

    Attributes:
        name: for people.
        ours, theirs: models that share their weights; created in fp32.
        inputs: tensors in fp32 that are cast with the model, and settings that are not.
        run_ours, run_theirs: `(model, inputs) -> result`.
        prepare: what our pipeline does once before many such calls, from inputs to further inputs.
        targets: times faster than diffusers that are aimed at, by dtype.
        limit: largest relative RMS between the two in fp32.
        kept: names of inputs that stay fp32, such as masks.
    """

    name: str
    ours: Any
    theirs: Any
    inputs: Inputs
    run_ours: Run
    run_theirs: Run
    prepare: Callable[[Any, Inputs], Inputs] | None = None
    targets: dict[str, float] = field(default_factory=dict)
    limit: float = EXACT
    kept: tuple[str, ...] = ()

    def cast(self, dtype: torch.dtype) -> None:
        """Both models and the inputs to `dtype`; the models go on sharing."""
        if dtype != next(self.theirs.parameters()).dtype:
            self.theirs.to(dtype)
            share(self.ours, self.theirs)
        self._cast_inputs = {
            name: value.to(dtype)
            if isinstance(value, Tensor) and value.is_floating_point() and name not in self.kept
            else value
            for name, value in self.inputs.items()
        }
        if self.prepare is not None:
            self._cast_inputs |= self.prepare(self.ours, self._cast_inputs)

    def give_ours(self, model: nn.Module | None = None) -> Tensor:
        """Our result, or that of another `model` in its place."""
        return self.run_ours(model or self.ours, self._cast_inputs)

    def give_theirs(self, model: nn.Module | None = None) -> Tensor:
        """diffusers' result, or that of another `model` in its place."""
        return self.run_theirs(model or self.theirs, self._cast_inputs)


def share(ours: nn.Module, theirs: nn.Module) -> None:
    """Give `ours` the very tensors of `theirs`."""
    ours.load_state_dict(theirs.state_dict(), assign=True)
    ours.eval().requires_grad_(False)


def pair(ours: type[Any], theirs: type[Any], config: dict[str, Any], device: torch.device) -> Any:
    """Our and diffusers' model of one config on random weights from one seed."""
    torch.manual_seed(0)
    with device:
        reference = theirs(**config).eval().requires_grad_(False)
    with torch.device("meta"):
        model = ours(**config)
    share(model, reference)
    return model, reference


def compiled(model: Any) -> nn.Module:
    """A second model on the same tensors whose large parts are compiled, each by itself."""
    if not hasattr(model, "config"):
        return torch.compile(model)  # type: ignore[return-value]
    with torch.device("meta"):
        other = type(model)(**model.config)
    share(other, model)
    for part in getattr(other, "transformer_blocks", None) or (other.encoder, other.decoder):
        part.compile()
    return other


def text_inputs(width: int, tokens: int, device: torch.device) -> Inputs:
    """A prompt of `tokens` tokens and an empty one in `SLOTS` slots each."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.zeros(2, SLOTS)
    mask[0, :tokens], mask[1, 0] = 1, 1
    text = torch.randn(2, SLOTS, width, generator=generator)
    return {"text": text.to(device), "mask": mask.to(device)}


def transformer(preset: str, size: int, tokens: int, device: torch.device, **changes: Any) -> Work:
    """A step with guidance: batch 2, a prompt and an empty prompt.

    Args:
        preset: of a published transformer.
        size: side of the picture in pixels.
        tokens: of the prompt.
        device: where.
        **changes: config keys that shall differ, e.g. `num_layers=1`.
    """
    import diffusers

    from sana_like import SanaTransformer2DModel
    from sana_like.presets import preset as find_preset

    config = find_preset(preset).config() | changes
    ours, theirs = pair(SanaTransformer2DModel, diffusers.SanaTransformer2DModel, config, device)
    side, generator = size // 32, torch.Generator().manual_seed(2)
    latents = torch.randn(2, theirs.config.in_channels, side, side, generator=generator)
    inputs = text_inputs(theirs.config.caption_channels, tokens, device) | {
        "latents": latents.to(device),
        "timestep": torch.full((2,), 500.0, device=device),
    }
    return Work(
        f"{preset} step, {size} px, batch 2",
        ours,
        theirs,
        inputs,
        lambda model, x: model(x["latents"], x["context"], x["timestep"]).sample,
        lambda model, x: (
            model(x["latents"], x["text"], x["timestep"], encoder_attention_mask=x["mask"]).sample
        ),
        prepare=lambda model, x: {"context": model.prepare_text(x["text"], x["mask"])},
        kept=("timestep", "mask"),
    )


def autoencoder(preset: str, size: int, direction: str, device: torch.device) -> Work:
    """Encoding or decoding of one square picture.

    Args:
        preset: of a published autoencoder.
        size: side of the picture in pixels.
        direction: `encode` or `decode`.
        device: where.
    """
    import diffusers

    from sana_like import AutoencoderDC
    from sana_like.autoencoders.presets import autoencoder_preset

    config = autoencoder_preset(preset).config
    ours, theirs = pair(AutoencoderDC, diffusers.AutoencoderDC, config, device)
    generator = torch.Generator().manual_seed(2)
    side = size // ours.spatial_compression_ratio
    shape = (3, size, size) if direction == "encode" else (config["latent_channels"], side, side)
    given = torch.randn(1, *shape, generator=generator).to(device)

    def run(model: Any, x: Inputs) -> Tensor:
        return getattr(model, direction)(x["given"], return_dict=False)[0]

    return Work(f"{preset} {direction}, {size} px", ours, theirs, {"given": given}, run, run)


def picture(
    preset: str, codec: str, size: int, steps: int, tokens: int, device: torch.device
) -> Work:
    """A whole picture from text embeddings: guidance, sampling and decoding by the pipelines.

    Args:
        preset, codec: of a published transformer and autoencoder.
        size: side of the picture in pixels.
        steps: of the sampler.
        tokens: of the prompt.
        device: where.
    """
    import diffusers

    from sana_like.schedulers.published import from_published
    from sana_like_pipelines import SanaPipeline

    step = transformer(preset, size, tokens, device)
    decode = autoencoder(codec, size, "decode", device)
    scheduler: Any = diffusers.DPMSolverMultistepScheduler(
        flow_shift=3.0, use_flow_sigmas=True, prediction_type="flow_prediction"
    )
    # The setting in which our sampler gives diffusers' numbers.
    own = from_published(
        {"_class_name": type(scheduler).__name__, **scheduler.config}, compatible=True
    )
    stock: Any = diffusers.SanaPipeline(None, None, decode.theirs, step.theirs, scheduler)
    pipe: Any = SanaPipeline(None, None, decode.ours, step.ours, own)
    for pipeline in (stock, pipe):
        pipeline.set_progress_bar_config(disable=True)
    text, mask = step.inputs["text"], step.inputs["mask"]
    inputs: Inputs = {
        "prompt_embeds": text[:1],
        "prompt_attention_mask": mask[:1],
        "negative_prompt_embeds": text[1:],
        "negative_prompt_attention_mask": mask[1:],
        "latents": step.inputs["latents"][:1],
    }
    settings: dict[str, Any] = {
        "num_inference_steps": steps,
        "height": size,
        "width": size,
        "output_type": "pt",
    }

    def ours(models: Any, x: Inputs) -> Tensor:
        pipe.transformer, pipe.vae = models["transformer"], models["vae"]
        return pipe(**x, **settings).images

    def theirs(models: Any, x: Inputs) -> Tensor:
        stock.transformer, stock.vae = models["transformer"], models["vae"]
        return stock(**x, **settings, negative_prompt=None, use_resolution_binning=False).images

    return Work(
        f"{preset} picture, {size} px, {steps} steps",
        nn.ModuleDict({"transformer": step.ours, "vae": decode.ours}),
        nn.ModuleDict({"transformer": step.theirs, "vae": decode.theirs}),
        inputs,
        ours,
        theirs,
        # Rounding of one step is the next one's input.
        limit=1e-4,
        kept=("prompt_attention_mask", "negative_prompt_attention_mask", "latents"),
    )
