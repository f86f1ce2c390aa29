"""Recipes as users write them: sections checked by pydantic, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sana_like_train.sections import FlowTask, ReconstructionTask, Section
from sana_like_train.video_sections import (
    FewStepPairsTask,
    SelfForcingTask,
    TextToVideoTask,
    VideoAutoencoderTask,
)


class ConfigError(ValueError):
    """A recipe that cannot be used: says which key, what was given and what is legal."""


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
        muon_fixed_norm: keep the Frobenius norm of each of Muon's weights; see `optim.Muon`.
        muon_exclude: layers that stay with AdamW though they have matrices, by whole parts of
            their dotted names.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    muon_lr_scale: float = Field(default=1.0, gt=0)
    muon_fixed_norm: bool = False
    muon_exclude: tuple[str, ...] = (
        "patch_embed",
        "time_embed",
        "caption_projection",
        "proj_out",
        "encoder.conv_in",
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
    """Which pictures and clips.

    Attributes:
        source: WebDataset tar, folder of tars, folder of pictures with `.txt` captions, or `emoji`
            for the pack that `sana-like train data emoji` has built. Tasks on clips can do without.
        clips: the same for clips, of tasks on clips; `emoji-clips` for the pack of that name.
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

    source: str | None = None
    clips: str | None = None
    split: str | None = None
    selected: bool = True
    composition: bool = False
    styles: tuple[str, ...] | None = None
    caption: str | None = None
    resolution: int = Field(default=256, ge=8)
    cache_dir: str | None = None


class AutoencoderTask(ReconstructionTask):
    """Reconstruction of pictures (DC-AE, section 3.3).

    Attributes:
        model: config keys of `AutoencoderDC`.
        phase: `reconstruction` trains everything on crops; `latent_adaptation` only the layers
            next to the latent at full resolution; `decoder_refinement` only the decoder.
        resample_gain: factor on the first weights of a new model's resampling convolutions and of
            those next to the latent. Pictures are smooth, so that a convolution as PyTorch begins
            it makes the stream several times larger at every step down and up, and the blocks,
            whose branches end in a norm, count for little beside it. With Muon's
            `muon_fixed_norm` the factor lasts.
        white_background: probability of white behind transparent pixels, else a random colour.
        evaluate_pictures: held-out pictures that are measured.
    """

    kind: Literal["autoencoder"] = "autoencoder"
    model: dict[str, Any]
    phase: Literal["reconstruction", "latent_adaptation", "decoder_refinement"] = "reconstruction"
    resample_gain: float = Field(default=1.0, gt=0)
    white_background: float = Field(default=0.5, ge=0, le=1)
    evaluate_pictures: int = Field(default=160, ge=1)


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


class TextToImageTask(FlowTask):
    """Pictures from text, with `SanaTransformer2DModel`.

    Attributes:
        augment: latent variants.
        contrastive_weight: pushes the prediction away from another sample's target
            (contrastive flow matching); 0 is off.
        lora: train adapters instead of the weights of `train.init_from`.
        control: train a ControlNet for the weights of `train.init_from`.
        evaluate_pictures: measured of each part of the split.
        metric: by which the best checkpoint is chosen: `flow_loss` (mean over the parts of the
            split), `flow_loss_train`, `flow_loss_composition` or `flow_loss_held_out`.
    """

    kind: Literal["text_to_image"] = "text_to_image"
    augment: Augment = Augment()
    contrastive_weight: float = Field(default=0.0, ge=0, lt=1)
    lora: LoRA | None = None
    control: Control | None = None
    evaluate_pictures: int = Field(default=256, ge=1)
    metric: str = "flow_loss"


Task = Annotated[
    AutoencoderTask
    | TextToImageTask
    | VideoAutoencoderTask
    | TextToVideoTask
    | FewStepPairsTask
    | SelfForcingTask,
    Field(discriminator="kind"),
]


class Recipe(Section):
    """One training run: `name` is the folder under the user's runs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    task: Task
    data: DataConfig
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        task, start = self.task, self.train.init_from
        if isinstance(task, AutoencoderTask | TextToImageTask):
            self._needs_pictures()
        elif self.data.source is None and self.data.clips is None:
            raise ValueError("give data.source (pictures), data.clips, or both")
        if isinstance(task, TextToImageTask):
            if task.lora is not None and task.control is not None:
                raise ValueError("task.lora and task.control exclude each other; train one")
            tuned = task.lora or task.control
            if tuned is not None and start is None:
                raise ValueError(
                    "task.lora and task.control tune existing weights; give them in "
                    "train.init_from (an embedded name, a folder or a hub id)"
                )
        if isinstance(task, FewStepPairsTask | SelfForcingTask) and start is None:
            raise ValueError(
                f"a task of kind {task.kind} goes on from a model of the stage before; give its "
                "folder in train.init_from"
            )
        begun = start or (task.image_model if isinstance(task, TextToVideoTask) else None)
        if isinstance(task, TextToImageTask | TextToVideoTask) and not task.model and begun is None:
            raise ValueError("give task.model (a new model) or train.init_from (a tuned one)")
        return self

    def _needs_pictures(self) -> None:
        if self.data.source is None:
            raise ValueError("data.source is missing: a tar or folder of pictures, or a pack")
        if self.data.clips is not None:
            raise ValueError(f"data.clips is for tasks on clips, not for {self.task.kind}")
