"""Sections that several kinds of recipes share; see `config` for whole recipes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of every section: unknown keys are refused and nothing changes after checking."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Adversary(Section):
    """Patch discriminator with hinge loss for the decoder refinement."""

    weight: float = Field(default=0.05, gt=0)
    lr: float = Field(default=2e-4, gt=0)
    width: int = Field(default=64, ge=8)
    layers: int = Field(default=3, ge=1, le=5)
    start_step: int = Field(default=0, ge=0)


class ReconstructionTask(Section):
    """What the training of an autoencoder is made of, whether of pictures or of clips.

    Attributes:
        crop: side of the random crops in pixels; none takes whole pictures.
        crop_schedule: later crops as `[[step, crop, batch_size], ...]`; crop 0 means whole.
        trainable: parameter-name prefixes that train; none takes the task's own.
        square_weight: of the mean square error, which PSNR measures; late in a run it trades a
            little sharpness of small errors for fewer large ones.
        gradient_weight: of the L1 on finite differences.
        perceptual_weight: of the multi-scale edge term.
        latent_noise: standard deviation of noise added to the latent, in its own deviations.
        adversary: the patch discriminator, or none.
    """

    crop: int | None = Field(default=128, ge=8)
    crop_schedule: tuple[tuple[int, int, int], ...] = ()
    trainable: tuple[str, ...] | None = None
    square_weight: float = Field(default=0.0, ge=0)
    gradient_weight: float = Field(default=0.5, ge=0)
    perceptual_weight: float = Field(default=0.0, ge=0)
    latent_noise: float = Field(default=0.0, ge=0)
    adversary: Adversary | None = None


class TimeSampling(Section):
    """Noise levels in training: `u = sigmoid(mean + std * n)`, then the shift.

    `sigma = shift * u / (1 + (shift - 1) * u)` (SANA, section 3.4).
    """

    mean: float = 0.0
    std: float = Field(default=1.0, gt=0)
    shift: float = Field(default=1.0, gt=0)


class GenerativeTask(Section):
    """A transformer with its frozen parts.

    Attributes:
        model: config keys of the transformer; may be empty with `train.init_from`.
        autoencoder: embedded name or folder of the autoencoder; none takes that of the pipeline
            in `train.init_from`.
        text_encoder: `smollm2`, or a folder with `text_encoder/` and `tokenizer/`; none takes the
            pipeline's.
        text_settings: `embedded`, `published`, or keys of `sana_like.text.TextSettings`; none
            takes the pipeline's.
        sample_prompts: of the sample sheet.
    """

    model: dict[str, Any] = {}
    autoencoder: str | None = None
    text_encoder: str | None = None
    text_settings: Literal["embedded", "published"] | dict[str, Any] | None = None
    sample_prompts: tuple[str, ...] = ()


class FlowTask(GenerativeTask):
    """Flow matching on cached latents and text features.

    Attributes:
        fit_text_input: start a new model's caption projection on text features of zero mean and
            unit variance, and its text at full strength; see `text_features.fit_text_input`.
        caption_dropout: probability of the empty caption (classifier-free guidance).
        time: how noise levels are drawn.
        sample_steps, sample_guidance, sample_shift: of the sample sheet. The exported scheduler
            has this shift.
    """

    fit_text_input: bool = False
    caption_dropout: float = Field(default=0.1, ge=0, le=1)
    time: TimeSampling = TimeSampling()
    sample_steps: int = Field(default=20, ge=1)
    sample_guidance: float = Field(default=4.0, ge=1)
    sample_shift: float = Field(default=1.0, gt=0)
