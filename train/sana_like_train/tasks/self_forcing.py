"""Third stage of long video: a student of few steps matches its teacher on its own videos."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sana_like.schedulers.chunked import TIME_SCALE, chunk_lengths, few_step_chunk, write_state
from sana_like.state import State, chunk_spans
from sana_like_train.config import Recipe
from sana_like_train.tasks.base import Batch, Position, derived_seed
from sana_like_train.tasks.chunk_causal import ChunkPredictor
from sana_like_train.tasks.distribution import (
    clean_seen,
    distribution_matching,
    noised,
    score_sigmas,
    sliced_distance,
)
from sana_like_train.tasks.few_step import FewStepTraining, few_step_video
from sana_like_train.tasks.flow_matching import fixed_noise, predicted_only, square_of_predicted
from sana_like_train.video_sections import SelfForcingTask

_MEASURE_BATCH = 4


class SelfForcingObjective(nn.Module):
    """Makes videos chunk by chunk and matches the distribution of their last chunks.

    Every model has the video so far in a state of its own, which it wrote itself: memory does not
    grow with the length of the video. Gradients reach the student through the last step of a
    trained chunk; none flows through states. Without gradients nothing is compared, and the videos
    serve the critic alone.

    Args:
        model: the student.
        teacher: frozen; its weights are checked at a resume.
        critic: predicts velocities of what the student makes. It is not a sub-module: its weights
            have their own optimiser.
        config: of the task.
    """

    def __init__(self, model: Any, teacher: Any, critic: Any, config: SelfForcingTask) -> None:
        super().__init__()
        self.model = model
        self.teacher = teacher.requires_grad_(False).eval()
        self.config = config
        self._critic = [critic]

    def train(self, mode: bool = True) -> SelfForcingObjective:
        """Switch the student; the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        """To the loop's dictionary.

        Args:
            batch: `noise` `[B, Z, F, y, x]`; `redraws` `[levels - 1, B, Z, F, y, x]`, the noise
                between the steps; `exits` `[chunks]`, the last step of each chunk; `text`
                `[2B, L, C]` with the empty captions first, `text_mask`; for the scores and for the
                critic `score_noise`, `critic_noise` like `noise` and `score_sigmas`,
                `critic_sigmas` `[B, chunks]`; and where the first frame is given `first`
                `[B, Z, 1, y, x]`.
        """
        noise, rows = batch["noise"], len(batch["noise"])
        text, mask = batch["text"], batch["text_mask"]
        student = ChunkPredictor(self.model, text[rows:], mask[rows:])
        critic = ChunkPredictor(self._critic[0], text[rows:], mask[rows:])
        teacher = ChunkPredictor(self.teacher, text, mask, self.config.teacher_guidance)
        compared = torch.is_grad_enabled()
        models = [student, critic, *([teacher] if compared else [])]
        states = [model.new_state(noise) for model in models]
        chunks = chunk_lengths(noise.shape[2], self.config.chunk)
        losses, told = [], []
        for number, span in enumerate(chunk_spans(chunks)):
            trained = number >= len(chunks) - self.config.trained_chunks
            made = self._made(student, batch, number, span, states[0], trained)
            if trained:
                score = _chunk_of(batch, "score", number, span, made)
                if compared:
                    losses.append(self._compared(score, critic, teacher, states))
                told.append((_chunk_of(batch, "critic", number, span, made), states[1]))
            if span.stop < noise.shape[2]:
                with torch.no_grad():
                    pairs = zip(models, states, strict=True)
                    states = [write_state(model, made.detach(), state) for model, state in pairs]
        per_sample = torch.stack(losses).mean(0) if losses else noise.new_zeros(rows)
        logs = {"matching": per_sample.mean().detach()} if losses else {}
        carry = {"chunks": told, "text": text[rows:], "text_mask": mask[rows:]}
        return {"loss": per_sample.mean(), "per_sample": per_sample, "logs": logs, "carry": carry}

    def _made(
        self,
        student: ChunkPredictor,
        batch: dict[str, Tensor],
        number: int,
        span: slice,
        state: State,
        trained: bool,
    ) -> Tensor:
        """A chunk; one that is trained ends at a step that was drawn, with gradient through it."""
        levels = self.config.levels
        last = int(batch["exits"][number]) if trained else len(levels) - 1
        steps, redraws = itertools.count(), iter(batch["redraws"][:, :, :, span])
        grad = trained and torch.is_grad_enabled()

        def predict(x: Tensor, times: Tensor, before: State, frames: Any) -> tuple[Tensor, State]:
            with torch.set_grad_enabled(grad and next(steps) == last):
                if torch.is_grad_enabled():
                    # Autocast keeps weights as cast without gradients, through which none flows.
                    torch.clear_autocast_cache()
                return student(x, times, before, frames)

        clean = batch.get("first") if span.start == 0 else None
        return few_step_chunk(
            predict,
            batch["noise"][:, :, span],
            state,
            lambda _: next(redraws),
            levels=levels[: last + 1],
            clean=clean,
        )

    def _compared(
        self,
        score: dict[str, Tensor],
        critic: ChunkPredictor,
        teacher: ChunkPredictor,
        states: list[State],
    ) -> Tensor:
        """The matching loss of a chunk, `[B]`; states are those of student, critic and teacher."""
        made, sigmas = score["latents"], score["sigmas"]
        with torch.no_grad():
            noisy = noised(made, score["noise"], sigmas)
            times, frames = TIME_SCALE * sigmas, (made.shape[2],)
            fake = clean_seen(noisy, critic(noisy, times, states[1], frames)[0], sigmas)
            real = clean_seen(noisy, teacher(noisy, times, states[2], frames)[0], sigmas)
        predicted = (sigmas > 0)[:, None, :, None, None]
        return distribution_matching(made, real, fake, predicted)


def _chunk_of(
    batch: dict[str, Tensor], purpose: str, number: int, span: slice, made: Tensor
) -> dict[str, Tensor]:
    """A chunk with the noise and the levels `[B, F]` at which it is looked at for a purpose."""
    sigmas = batch[f"{purpose}_sigmas"][:, number, None].repeat(1, made.shape[2])
    if span.start == 0 and "first" in batch:
        sigmas[:, 0] = 0.0
    return {"latents": made, "noise": batch[f"{purpose}_noise"][:, :, span], "sigmas": sigmas}


class SelfForcingCritic(nn.Module):
    """Flow matching of the critic on the chunks that the student has made.

    Args:
        model: the critic's transformer.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, carry: dict[str, Any]) -> dict[str, Any]:
        """What `SelfForcingObjective` carries, to the loop's dictionary."""
        predict = ChunkPredictor(self.model, carry["text"], carry["text_mask"])
        errors = []
        for chunk, state in carry["chunks"]:
            made, noise, sigmas = chunk["latents"].detach(), chunk["noise"], chunk["sigmas"]
            noisy = noised(made, noise, sigmas)
            velocity, _ = predict(noisy, TIME_SCALE * sigmas, state, (made.shape[2],))
            difference = predicted_only(velocity - (noise - made), sigmas)
            errors.append(square_of_predicted(difference, sigmas))
        per_sample = torch.stack(errors).mean(0)
        loss = per_sample.mean()
        return {"loss": loss, "per_sample": per_sample, "logs": {"critic": loss.detach()}}


class SelfForcingTraining(FewStepTraining):
    """The third-stage task of a recipe; see `video_sections.SelfForcingTask`.

    Args:
        recipe: the resolved recipe.
        model: the student.
        teacher: the teacher; the critic begins as a copy of it.
        critic: that copy.
        device: where latents and text features are computed.
    """

    config: SelfForcingTask
    metric = "distance_end"

    def __init__(
        self, recipe: Recipe, model: Any, teacher: Any, critic: Any, device: torch.device
    ) -> None:
        super().__init__(recipe, model, device)
        config = self.config
        self.text = self._read_text([*self.items[0], *self.items[1]])
        self.firsts = [
            self._pack(items, frames=1) if items and config.first_frame else None
            for items in self.items
        ]
        self.objective: Any = SelfForcingObjective(model, teacher, critic, config)
        self.critic = SelfForcingCritic(critic.train())
        self.critic_lr = config.critic_lr
        self.objective_every = config.critic_steps

    def _window(self, step: int) -> int:
        """Chunks of a video at a step."""
        return next(n for start, n in reversed(self.config.windows) if step >= start)

    def make_batch(self, position: Position) -> Batch:
        """Captions, and all noise that a video takes on its way."""
        config, rows = self.config, self.batch_size
        seed = derived_seed(self.seed, "videos", position.micro, position.rank)
        rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        chosen = self.order.indices(position, rows, rng)
        items = [self.items[kind][index] for kind, index in chosen]
        chunks, steps = self._window(position.step), len(config.levels)
        channels, _, *cells = self.latent_shape
        shape = (rows, channels, chunks * config.chunk, *cells)
        texts = [self._caption(item, position) for item in items]
        embeds, mask = self.text.batch([""] * rows + texts)
        tensors = {
            "text": embeds,
            "text_mask": mask,
            "exits": torch.randint(steps, (chunks,), generator=generator),
            "redraws": torch.randn((steps - 1, *shape), generator=generator),
        }
        for name in ("noise", "score_noise", "critic_noise"):
            tensors[name] = torch.randn(shape, generator=generator)
        for name in ("score_sigmas", "critic_sigmas"):
            levels = score_sigmas(rows * chunks, config.score_shift, generator)
            tensors[name] = levels.view(rows, chunks)
        if rng.random() < config.first_frame:
            firsts = [self.firsts[kind] for kind, _ in chosen]
            tensors["first"] = torch.stack(
                [one.get(n) for one, (_, n) in zip(firsts, chosen, strict=True) if one is not None]
            )
        return Batch([item.key for item in items], tensors)

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """How far the first and the last chunks of long videos are from true clips.

        Distances between distributions of latent frames, see `sliced_distance`.
        """
        items = [item for some in self.measured.values() for item in some]
        true = torch.cat([packed.stack(range(len(packed.shapes)))
                          for packed in self.measured_latents.values()])  # fmt: skip
        channels, _, *cells = self.latent_shape
        frames = max(n for _, n in self.config.windows) * self.config.chunk
        made = []
        for start in range(0, len(items), _MEASURE_BATCH):
            texts = [item.captions[0].text for item in items[start : start + _MEASURE_BATCH]]
            counters = [(start + place,) for place in range(len(texts))]
            noise = fixed_noise((channels, frames, *cells), counters).to(device)
            embeds, mask = (tensor.to(device) for tensor in self.text.batch(texts))
            predict = ChunkPredictor(self.exported, embeds, mask)
            video = few_step_video(predict, noise, self.config.chunk, self.config.levels)
            made.append(video.cpu())
        video = torch.cat(made)
        ends = {"distance_start": video[:, :, : self.config.chunk],
                "distance_end": video[:, :, -self.config.chunk :]}  # fmt: skip
        return {name: sliced_distance(_frames(part), _frames(true)) for name, part in ends.items()}


def _frames(latents: Tensor) -> Tensor:
    """Latent frames as points: `[B, Z, F, y, x]` to `[B*F, Z*y*x]`."""
    return latents.float().transpose(1, 2).flatten(0, 1).flatten(1)
