"""Training of the video transformer on cached latents and text, whole or chunk by chunk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sana_like.schedulers.chunked import chunk_lengths
from sana_like.schedulers.flow import make_sigmas
from sana_like_train.config import ConfigError, Recipe
from sana_like_train.data.clip_items import ClipItem, real_item, still_item
from sana_like_train.tasks.base import Batch, Position, SampleOrder, derived_seed
from sana_like_train.tasks.chunk_causal import (
    ChunkCausalObjective,
    ChunkPredictor,
    make_video,
    many_step_chunk,
)
from sana_like_train.tasks.clip_selection import MixedOrder, drawn_items, with_captions
from sana_like_train.tasks.flow_matching import (
    FlowMatchingObjective,
    guide,
    measured_losses,
    sample_flow,
    sample_sigmas,
)
from sana_like_train.tasks.video import VideoTraining
from sana_like_train.text_features import fit_text_input
from sana_like_train.video_sections import TextToVideoTask

_MEASURE_BATCH = 8


class TextToVideoTraining(VideoTraining):
    """The text-to-video task of a recipe; see `video_sections.TextToVideoTask`.

    Args:
        recipe: the resolved recipe.
        model: the transformer.
        fresh: whether it begins from nothing.
        device: where latents and text features are computed.
    """

    config: TextToVideoTask

    def __init__(self, recipe: Recipe, model: Any, fresh: bool, device: torch.device) -> None:
        task = recipe.task
        assert isinstance(task, TextToVideoTask)
        super().__init__(recipe, model, task.clips, task.evaluate_clips, device)
        config = self.config
        self.chunk, self.shift, self.metric = config.chunk, config.sample_shift, config.metric
        names = ["flow_loss", *(f"flow_loss_{name}" for name in self.measured)]
        if self.metric not in names:
            raise ConfigError(f"task.metric is {self.metric!r}; measured are {', '.join(names)}")
        pictures, clips = self.records.pictures, self.records.clips
        drawn = drawn_items(pictures.train, self.clips, self.seed)
        real = [real_item(record) for record in clips.train]
        stills = [still_item(record) for record in pictures.train if config.pictures_every]
        if config.pictures_every and not stills:
            raise ConfigError("task.pictures_every asks for pictures; give data.source")
        kept = self.clips.captions
        self.items = [with_captions(drawn, kept), with_captions(real, kept)]
        self.stills = with_captions(stills, kept)
        self.order = MixedOrder(len(drawn), len(real), self.clips.share, self.seed)
        self.still_order = SampleOrder(len(stills), self.seed) if stills else None
        self.text = self._read_text([*self.items[0], *self.items[1], *self.stills])
        if config.fit_text_input and fresh:
            fit_text_input(model, self.text)
        self.latents = [self._pack(items) if items else None for items in self.items]
        self.still_latents = self._pack(self.stills, frames=1) if stills else None
        self.objective: Any = self._objective(model)

    def _objective(self, model: Any) -> FlowMatchingObjective:
        weight = self.config.temporal_weight
        if self.chunk is None:
            return FlowMatchingObjective(model, temporal_weight=weight)
        return ChunkCausalObjective(model, self.chunk, weight)

    def make_batch(self, position: Position) -> Batch:
        """Latents of clips, or of pictures, with a caption drawn for each, noise and levels."""
        rng = np.random.default_rng(self._seed(position))
        every = self.config.pictures_every
        pictures_before = position.micro // every if every else 0
        if every and position.micro % every == every - 1:
            items, latents = self._pictures(_at(position, pictures_before, self._still_batch))
        else:
            clips_before = position.micro - pictures_before
            items, latents = self._clips(_at(position, clips_before, self.batch_size), rng)
        texts = [self._caption(item, position) for item in items]
        dropped = rng.random(len(texts)) < self.config.caption_dropout
        texts = ["" if drop else text for drop, text in zip(dropped, texts, strict=True)]
        embeds, mask = self.text.batch(texts)
        generator = torch.Generator().manual_seed(self._seed(position))
        tensors = {
            "latents": latents,
            "noise": torch.randn(latents.shape, generator=generator),
            "text": embeds,
            "text_mask": mask,
            **self._levels(len(items), latents.shape[2], rng, generator),
        }
        return Batch([item.key for item in items], tensors)

    @property
    def _still_batch(self) -> int:
        return self.config.picture_batch

    def _seed(self, position: Position) -> int:
        return derived_seed(self.seed, "flow", position.micro, position.rank)

    def _pictures(self, position: Position) -> tuple[list[ClipItem], Tensor]:
        assert self.still_order is not None and self.still_latents is not None
        indices = self.still_order.indices(position, self._still_batch)
        return [self.stills[index] for index in indices], self.still_latents.stack(indices)

    def _clips(self, position: Position, rng: np.random.Generator) -> tuple[list[ClipItem], Tensor]:
        chosen = self.order.indices(position, self.batch_size, rng)
        items = [self.items[kind][index] for kind, index in chosen]
        latents = []
        for kind, index in chosen:
            packed = self.latents[kind]
            assert packed is not None
            latents.append(packed.get(index))
        return items, torch.stack(latents)

    def _levels(
        self, count: int, frames: int, rng: np.random.Generator, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Noise levels `[B, F]`, and with chunks whether the past is clean."""
        config = self.config
        sigmas = sample_sigmas(config.time, count, generator)[:, None].repeat(1, frames)
        chunks = (1,) * frames if self.chunk is None else chunk_lengths(frames, self.chunk)
        parts = sample_sigmas(config.time, count * len(chunks), generator).view(count, -1)
        clean_past = self.chunk is not None and rng.random() < config.clean_past
        if self.chunk is not None and not clean_past:
            # An earlier chunk is never noisier than a later one, as in a staggered schedule.
            parts = parts.sort(dim=1).values
        own = torch.from_numpy(rng.random(count) < config.per_frame) | torch.tensor(clean_past)
        lengths = torch.tensor(chunks)
        sigmas = torch.where(own[:, None], parts.repeat_interleave(lengths, dim=1), sigmas)
        if frames > 1:
            sigmas[torch.from_numpy(rng.random(count) < config.first_frame), 0] = 0.0
        if self.chunk is None:
            return {"sigmas": sigmas}
        return {"sigmas": sigmas, "clean_past": torch.tensor(clean_past)}

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """Flow loss at fixed noise levels and noise with the main captions, per part."""
        measures = {f"flow_loss_{name}": self._flow_loss(name, device) for name in self.measured}
        return {"flow_loss": float(np.mean(list(measures.values()))), **measures}

    def _flow_loss(self, name: str, device: torch.device) -> float:
        items, latents = self.measured[name], self.measured_latents[name]
        losses: list[float] = []
        for start in range(0, len(items), _MEASURE_BATCH):
            numbers = list(range(start, min(start + _MEASURE_BATCH, len(items))))
            embeds, mask = self.text.batch([items[n].captions[0].text for n in numbers])
            batch = {"latents": latents.stack(numbers), "text": embeds, "text_mask": mask}
            on_device = {key: tensor.to(device) for key, tensor in batch.items()}
            losses += measured_losses(self.objective, on_device, numbers)
        return float(np.mean(losses))

    def _make(self, noise: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        config = self.config
        sigmas = make_sigmas(config.sample_steps, shift=config.sample_shift, grid="nvlabs").tolist()
        if self.chunk is not None:
            predict = ChunkPredictor(self.exported, text, mask, config.sample_guidance)
            return make_video(
                predict,
                noise,
                self.chunk,
                lambda x, state, first: many_step_chunk(predict, x, state, sigmas, clean=first),
            )

        def velocity(x: Tensor, sigma: float) -> Tensor:
            levels = torch.full((len(text),), sigma, device=x.device)
            output = self.objective.predict(torch.cat([x, x]), levels, text, mask)
            return guide(output, config.sample_guidance)

        return sample_flow(velocity, noise, sigmas)


def _at(position: Position, number: int, batch_size: int) -> Position:
    """The position of a micro batch among those of its kind."""
    return replace(position, samples=number * batch_size * position.world)
