"""Tasks on clips: their autoencoder, text to video, and the three stages of long video."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, model_validator

from sana_like_train.sections import FlowTask, GenerativeTask, ReconstructionTask, Section

# Equal to those of `data.motion` and `schedulers.chunked`, which a recipe is read without.
_FRAMES, _RATE = 25, 8
_LEVELS = (1.0, 0.96, 0.889, 0.727)


class ClipData(Section):
    """Which clips are made of the records of `data.source` and `data.clips`.

    Attributes:
        frames: of a clip.
        rate: frames per second.
        drawn: clips of exact motion for each picture of `data.source`; 0 draws none.
        motions: of these only; none is all of `data.motion.MOTIONS`.
        share: of the samples that are drawn clips, where there are clips of `data.clips` too.
        captions: wordings kept of a clip, its main one among them.
    """

    frames: int = Field(default=_FRAMES, ge=1)
    rate: float = Field(default=_RATE, gt=0)
    drawn: int = Field(default=3, ge=0)
    motions: tuple[str, ...] | None = None
    share: float = Field(default=0.75, ge=0, le=1)
    captions: int = Field(default=3, ge=1)


class VideoAutoencoderTask(ReconstructionTask):
    """Reconstruction of clips by `AutoencoderDCVideo`.

    Trained are, unless `trainable` says more, the layers over time alone: then a picture's weights
    are those of the autoencoder of pictures, and files need not hold them twice.

    Attributes:
        image_autoencoder: embedded name or folder of the `AutoencoderDC` that a new one begins as.
        model: config keys of `AutoencoderDCVideo` that differ from those of a new one.
        clips: what is reconstructed; clips of exact motion are drawn anew for every step.
        temporal_weight: of the L1 on differences between neighbouring frames.
        share_image_weights: leave weights that equal those of an embedded `image_autoencoder` out
            of an export.
        evaluate_clips: held-out clips that are measured.
    """

    kind: Literal["video_autoencoder"] = "video_autoencoder"
    image_autoencoder: str | None = None
    model: dict[str, Any] = Field(default_factory=dict)
    clips: ClipData = ClipData(frames=9)
    temporal_weight: float = Field(default=0.5, ge=0)
    share_image_weights: bool = True
    evaluate_clips: int = Field(default=32, ge=1)


class TextToVideoTask(FlowTask):
    """Clips from text, with `SanaVideoTransformer3DModel`.

    Attributes:
        image_model: embedded name or folder of an image transformer, or of a pipeline with one,
            with whose weights a new model begins.
        clips: what is learned from.
        pictures_every: every so many steps are on pictures of `data.source`, as clips of one
            frame; 0 is none.
        picture_batch: pictures of such a step.
        per_frame: probability that the frames of a clip have noise levels of their own.
        first_frame: probability that the first latent frame is clean, as in image to video.
        temporal_weight: of the error of differences between neighbouring latent frames.
        chunk: latent frames of a chunk; none sees clips whole. With it, frames read their own chunk
            and those before (block-causal, the first stage of long video), and levels of their own
            are those of chunks, never falling along the clip.
        clean_past: with `chunk`, probability that the chunks before are clean, as they are when a
            video is made chunk by chunk; else they are as noisy as they are.
        evaluate_clips: measured of each part.
        metric: by which the best checkpoint is chosen: `flow_loss` (mean over the parts),
            `flow_loss_train` or `flow_loss_held_out`.
    """

    kind: Literal["text_to_video"] = "text_to_video"
    image_model: str | None = None
    clips: ClipData = ClipData()
    pictures_every: int = Field(default=0, ge=0)
    picture_batch: int = Field(default=32, ge=1)
    per_frame: float = Field(default=0.2, ge=0, le=1)
    first_frame: float = Field(default=0.2, ge=0, le=1)
    temporal_weight: float = Field(default=0.0, ge=0)
    chunk: int | None = Field(default=None, ge=1)
    clean_past: float = Field(default=0.5, ge=0, le=1)
    evaluate_clips: int = Field(default=32, ge=1)
    metric: str = "flow_loss"


class FewStepTask(GenerativeTask):
    """What the two stages have in common that make a model of few steps from one of many.

    Attributes:
        clips: whose captions are learned; clips themselves serve to measure, and as first frames.
        chunk: latent frames of a chunk.
        levels: noise levels of the student, falling from 1.
        teacher_guidance: weight of the caption in what the teacher says.
        first_frame: probability that the first latent frame is given.
        evaluate_clips: videos that are measured.
    """

    clips: ClipData = ClipData()
    chunk: int = Field(default=2, ge=1)
    levels: tuple[float, ...] = _LEVELS
    teacher_guidance: float = Field(default=3.0, ge=1)
    first_frame: float = Field(default=0.2, ge=0, le=1)
    evaluate_clips: int = Field(default=16, ge=1)

    @model_validator(mode="after")
    def _levels_fall(self) -> FewStepTask:
        levels = self.levels
        falling = all(high > low for high, low in pairwise(levels))
        if not levels or not falling or levels[0] != 1 or levels[-1] <= 0:
            raise ValueError(f"levels {list(levels)} must fall from 1, and stay above 0")
        return self


class FewStepPairsTask(FewStepTask):
    """Second stage of long video: the student learns by heart where its teacher's paths end.

    The teacher, a block-causal model of many steps, is `train.init_from`, with whose weights the
    student begins. Its paths are computed once and kept (CausVid, arXiv 2412.07772, section 4.3).

    Attributes:
        pairs: how many clips the teacher makes.
        teacher_steps: of the teacher between two levels of the student.
    """

    kind: Literal["few_step_pairs"] = "few_step_pairs"
    pairs: int = Field(default=512, ge=1)
    teacher_steps: int = Field(default=5, ge=1)


class SelfForcingTask(FewStepTask):
    """Third stage of long video: distribution matching on what the student itself has made.

    The student is `train.init_from`, the teacher a block-causal model of many steps; the critic
    begins as the teacher and follows the student (Self Forcing, arXiv 2506.08009; DMD2, arXiv
    2405.14867). All three read the student's own past in states of constant size.

    Attributes:
        teacher: embedded name or folder of the teacher's pipeline.
        windows: chunks of a video as `[[step, chunks], ...]`, longer ones later.
        trained_chunks: so many of a video's last chunks are trained. Gradients never flow through
            a state from one chunk to another.
        critic_lr: peak learning rate of the critic.
        critic_steps: the student is trained in every so many-th step, the critic in all.
        score_shift: shift of the noise levels at which teacher and critic are compared.
    """

    kind: Literal["self_forcing"] = "self_forcing"
    teacher: str
    windows: tuple[tuple[int, int], ...] = ((0, 3),)
    trained_chunks: int = Field(default=1, ge=1)
    critic_lr: float = Field(default=2e-5, gt=0)
    critic_steps: int = Field(default=5, ge=1)
    score_shift: float = Field(default=5.0, gt=0)

    @model_validator(mode="after")
    def _windows_begin(self) -> SelfForcingTask:
        steps = [step for step, _ in self.windows]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise ValueError("windows must be [[step, chunks], ...] with rising steps from 0")
        if min(chunks for _, chunks in self.windows) < 1:
            raise ValueError("windows must have 1 chunk or more")
        return self
