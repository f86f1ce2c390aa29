"""Recipes as users write them: sections checked by pydantic, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ConfigError(ValueError):
    """A recipe that cannot be used: says which key, what was given and what is legal."""


class Section(BaseModel):
    """Base of every section: unknown keys are refused and nothing changes after checking."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EMA(Section):
    """Exponential moving average of the weights, kept in fp32.

    The decay at step n is `min(decay, (1 + n) / (warmup + n))`, so that early weights fade fast.
    """

    decay: float = Field(default=0.999, ge=0, lt=1)
    warmup: float = Field(default=10.0, ge=1)


class Schedule(Section):
    """Learning-rate factor over steps: linear warm-up, then one of three shapes.

    `wsd` (warm-up, stable, decay) holds 1 until `decay_steps` before the end, then falls to
    `floor` along `1 - sqrt(x)`; `cosine` falls from the end of the warm-up on.
    """

    kind: Literal["constant", "cosine", "wsd"] = "cosine"
    warmup_steps: int = Field(default=200, ge=0)
    decay_steps: int = Field(default=0, ge=0)
    floor: float = Field(default=0.0, ge=0, le=1)


class OptimizerConfig(Section):
    """AdamW everywhere, or Muon on hidden matrices and kernels with AdamW on the rest.

    Attributes:
        kind: `adamw` or `muon`.
        betas: AdamW's.
        eps: AdamW's.
        weight_decay: on matrices and convolution kernels; vectors and tables get none.
        momentum: Muon's.
        muon_lr_scale: Muon's learning rate over `train.lr` (updates are scaled to AdamW's RMS).
        muon_exclude: layers that stay with AdamW though they have matrices, by whole parts of
            their dotted names.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    muon_lr_scale: float = Field(default=1.0, gt=0)
    muon_exclude: tuple[str, ...] = (
        "patch_embed",
        "time_embed",
        "caption_projection",
        "proj_out",
        "encoder.conv_in",
        "encoder.conv_out",
        "decoder.conv_in",
        "decoder.conv_out",
        "scale_shift_table",
    )


class TrainConfig(Section):
    """The loop.

    Attributes:
        seed: of the data order and of every random draw.
        batch_size: samples per process and micro step.
        gradient_accumulation: micro steps per optimiser step.
        max_steps: optimiser steps; the schedule is laid out over them.
        max_hours: stop (with a checkpoint) after so long in this and earlier sessions together.
        max_samples: stop after so many samples over all processes.
        lr: peak learning rate.
        clip_norm: gradient norm limit.
        precision: autocast dtype; weights, optimiser and EMA stay fp32.
        init_from: folder or embedded name whose weights start the run, or none.
        checkpoint_minutes, checkpoint_steps: when to save; either may be null.
        keep_last: checkpoints kept beside the best one.
        sample_steps, evaluate_steps: how often to draw the sample sheet and the held-out metrics.
        log_steps: how often losses are written.
        log_seconds: how often a progress line is written where there is no terminal.
        gradient_checkpointing: recompute activations of the model's blocks in the backward pass.
        device: `auto` (what there is), or `cpu`.
    """

    seed: int = Field(default=0, ge=0)
    batch_size: int = Field(default=16, ge=1)
    gradient_accumulation: int = Field(default=1, ge=1)
    max_steps: int = Field(default=10_000, ge=1)
    max_hours: float | None = Field(default=None, gt=0)
    max_samples: int | None = Field(default=None, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    clip_norm: float | None = Field(default=1.0, gt=0)
    precision: Literal["fp32", "bf16"] = "bf16"
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: Schedule = Schedule()
    ema: EMA | None = EMA()
    init_from: str | None = None
    checkpoint_minutes: float | None = Field(default=10.0, gt=0)
    checkpoint_steps: int | None = Field(default=None, ge=1)
    keep_last: int = Field(default=2, ge=1)
    sample_steps: int | None = Field(default=None, ge=1)
    evaluate_steps: int | None = Field(default=None, ge=1)
    log_steps: int = Field(default=20, ge=1)
    log_seconds: float = Field(default=30.0, gt=0)
    gradient_checkpointing: bool = False
    device: Literal["auto", "cpu"] = "auto"

    @model_validator(mode="after")
    def _decay_fits(self) -> TrainConfig:
        steps = self.schedule.warmup_steps + self.schedule.decay_steps
        if steps > self.max_steps:
            raise ValueError(
                f"schedule.warmup_steps + schedule.decay_steps = {steps} exceed "
                f"max_steps = {self.max_steps}; shorten them or train longer"
            )
        return self


class DataConfig(Section):
    """Which pictures.

    Attributes:
        source: WebDataset tar, folder of tars, folder of pictures with `.txt` captions, or `emoji`
            for the pack that `sana-like train data emoji` has built.
        split: committed split (or the path of its file) whose held-out records are kept for the
            metrics; none trains on everything and measures on the training pictures.
        selected: with a split, only the concepts and styles of the product.
        composition: with a split, train on its composition part too (no captions are learned by
            an autoencoder).
        styles: keep only these; none keeps all.
        caption: for pictures that come without one.
        resolution: side in pixels to which pictures are brought (its square is the area of all
            buckets where pictures have other shapes).
        cache_dir: where decoded pictures, latents and text features are kept; none takes the
            user cache folder.
    """

    source: str
    split: str | None = None
    selected: bool = True
    composition: bool = False
    styles: tuple[str, ...] | None = None
    caption: str | None = None
    resolution: int = Field(default=256, ge=8)
    cache_dir: str | None = None


class Adversary(Section):
    """Patch discriminator with hinge loss for the decoder refinement."""

    weight: float = Field(default=0.05, gt=0)
    lr: float = Field(default=2e-4, gt=0)
    width: int = Field(default=64, ge=8)
    layers: int = Field(default=3, ge=1, le=5)
    start_step: int = Field(default=0, ge=0)


class AutoencoderTask(Section):
    """Reconstruction of pictures (DC-AE, section 3.3).

    Attributes:
        phase: `reconstruction` trains everything on crops; `latent_adaptation` only the layers
            next to the latent at full resolution; `decoder_refinement` only the decoder.
        crop: side of the random crops in pixels; none takes whole pictures.
        crop_schedule: later crops as `[[step, crop, batch_size], ...]`; crop 0 means whole.
        trainable: parameter-name prefixes that train; none takes the phase's own.
        white_background: probability of white behind transparent pixels, else a random colour.
        square_weight: of the mean square error, which PSNR measures; late in a run it trades a
            little sharpness of small errors for fewer large ones.
        gradient_weight: of the L1 on finite differences.
        perceptual_weight: of the multi-scale edge term.
        latent_noise: standard deviation of noise added to the latent, in its own deviations.
        adversary: the patch discriminator, or none.
    """

    kind: Literal["autoencoder"] = "autoencoder"
    model: dict[str, Any]
    phase: Literal["reconstruction", "latent_adaptation", "decoder_refinement"] = "reconstruction"
    crop: int | None = Field(default=128, ge=8)
    crop_schedule: tuple[tuple[int, int, int], ...] = ()
    trainable: tuple[str, ...] | None = None
    white_background: float = Field(default=0.5, ge=0, le=1)
    square_weight: float = Field(default=0.0, ge=0)
    gradient_weight: float = Field(default=0.5, ge=0)
    perceptual_weight: float = Field(default=0.0, ge=0)
    latent_noise: float = Field(default=0.0, ge=0)
    adversary: Adversary | None = None
    evaluate_pictures: int = Field(default=160, ge=1)


class TimeSampling(Section):
    """Noise levels in training: `u = sigmoid(mean + std * n)`, then the shift.

    `sigma = shift * u / (1 + (shift - 1) * u)` (SANA, section 3.4).
    """

    mean: float = 0.0
    std: float = Field(default=1.0, gt=0)
    shift: float = Field(default=1.0, gt=0)


class Augment(Section):
    """Extra latents per picture: the picture shifted, zoomed and perhaps mirrored on white.

    Attributes:
        variants: how many besides the picture itself.
        probability: of drawing one of them.
        shift: largest shift as a fraction of the side.
        zoom: largest change of scale.
        mirror: whether variants may be mirrored.
    """

    variants: int = Field(default=0, ge=0)
    probability: float = Field(default=0.5, ge=0, le=1)
    shift: float = Field(default=0.06, ge=0, lt=0.5)
    zoom: float = Field(default=0.08, ge=0, lt=0.5)
    mirror: bool = False


class LoRA(Section):
    """Low-rank adapters in place of full training."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=16, gt=0)
    target_modules: tuple[str, ...] = ("to_q", "to_k", "to_v", "to_out.0")


class Control(Section):
    """A ControlNet trained beside the frozen transformer of `train.init_from`.

    Attributes:
        kind: `edges` takes Sobel edges of the training pictures as control.
        num_layers: blocks that are copied; fewer than the transformer has.
    """

    kind: Literal["edges"] = "edges"
    num_layers: int = Field(default=7, ge=1)


class TextToImageTask(Section):
    """Flow matching on cached latents and text features.

    Attributes:
        model: config keys of `SanaTransformer2DModel`; may be empty with `train.init_from`.
        autoencoder: embedded name or folder of the autoencoder; none takes that of the pipeline
            in `train.init_from`.
        text_encoder: `smollm2`, or a folder with `text_encoder/` and `tokenizer/`; none takes the
            pipeline's.
        text_settings: `embedded`, `published`, or keys of `sana_like.text.TextSettings`; none
            takes the pipeline's.
        fit_text_input: start a new model's caption projection on text features of zero mean and
            unit variance, and its text at full strength; see `text_features.fit_text_input`.
        caption_dropout: probability of the empty caption (classifier-free guidance).
        time: how noise levels are drawn.
        augment: latent variants.
        contrastive_weight: pushes the prediction away from another sample's target
            (contrastive flow matching); 0 is off.
        lora: train adapters instead of the weights of `train.init_from`.
        control: train a ControlNet for the weights of `train.init_from`.
        sample_prompts, sample_steps, sample_guidance, sample_shift: of the sample sheet. The
            exported scheduler has this shift.
        evaluate_pictures: measured of each part of the split.
        metric: by which the best checkpoint is chosen: `flow_loss` (mean over the parts of the
            split), `flow_loss_train`, `flow_loss_composition` or `flow_loss_held_out`.
    """

    kind: Literal["text_to_image"] = "text_to_image"
    model: dict[str, Any] = {}
    autoencoder: str | None = None
    text_encoder: str | None = None
    text_settings: Literal["embedded", "published"] | dict[str, Any] | None = None
    fit_text_input: bool = False
    caption_dropout: float = Field(default=0.1, ge=0, le=1)
    time: TimeSampling = TimeSampling()
    augment: Augment = Augment()
    contrastive_weight: float = Field(default=0.0, ge=0, lt=1)
    lora: LoRA | None = None
    control: Control | None = None
    sample_prompts: tuple[str, ...] = ()
    sample_steps: int = Field(default=20, ge=1)
    sample_guidance: float = Field(default=4.0, ge=1)
    sample_shift: float = Field(default=1.0, gt=0)
    evaluate_pictures: int = Field(default=256, ge=1)
    metric: str = "flow_loss"


Task = Annotated[AutoencoderTask | TextToImageTask, Field(discriminator="kind")]


class Recipe(Section):
    """One training run: `name` is the folder under the user's runs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    task: Task
    data: DataConfig
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        task = self.task
        if isinstance(task, TextToImageTask):
            if task.lora is not None and task.control is not None:
                raise ValueError("task.lora and task.control exclude each other; train one")
            tuned = task.lora or task.control
            if tuned is not None and self.train.init_from is None:
                raise ValueError(
                    "task.lora and task.control tune existing weights; give them in "
                    "train.init_from (an embedded name, a folder or a hub id)"
                )
            if not task.model and self.train.init_from is None:
                raise ValueError("give task.model (a new model) or train.init_from (a tuned one)")
        return self
