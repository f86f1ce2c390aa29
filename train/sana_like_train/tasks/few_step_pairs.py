"""Second stage of long video: regression on the paths of a teacher of many steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sana_like.schedulers.chunked import chunk_lengths, hold_frames
from sana_like.schedulers.flow import x0_to_velocity
from sana_like.state import State
from sana_like_train.cache import fingerprint, kept_tensor, tensors_hash
from sana_like_train.config import Recipe
from sana_like_train.data.clip_items import ClipItem
from sana_like_train.tasks.base import Batch, Position, SampleOrder, derived_seed
from sana_like_train.tasks.chunk_causal import (
    ChunkCausalObjective,
    ChunkPredictor,
    make_video,
    many_step_chunk,
)
from sana_like_train.tasks.few_step import FewStepTraining
from sana_like_train.tasks.flow_matching import levels_of
from sana_like_train.video_sections import FewStepPairsTask

_PATHS_AT_ONCE = 8


class FewStepPairsTraining(FewStepTraining):
    """The second-stage task of a recipe; see `video_sections.FewStepPairsTask`.

    Args:
        recipe: the resolved recipe.
        model: teacher and student in one: its weights as they are make the paths.
        device: where the paths are made.
    """

    config: FewStepPairsTask
    metric = "pair_loss"

    def __init__(self, recipe: Recipe, model: Any, device: torch.device) -> None:
        super().__init__(recipe, model, device)
        config = self.config
        some = self._items_at(Position(0, 0, 0), config.pairs, "pairs")
        measured = [item for items in self.measured.values() for item in items]
        self.text = self._read_text(some)
        model.to(device).eval()
        self.paths = self._paths(model, some, "paths", config.first_frame)
        self.measured_paths = self._paths(model, measured, "measured paths", 0.0)
        model.train()
        self.path_order = SampleOrder(len(self.paths.texts), self.seed)
        self.objective: Any = ChunkCausalObjective(model, config.chunk)

    def _paths(self, model: Any, items: list[ClipItem], what: str, first_frame: float) -> Paths:
        """The teacher's paths for the main captions, from the cache where they were computed."""
        config, texts = self.config, [item.captions[0].text for item in items]
        groups = range(0, len(items), _PATHS_AT_ONCE)
        rng = np.random.default_rng(derived_seed(self.seed, what))
        given = [bool(rng.random() < first_frame) for _ in groups]
        chosen = [item for start, held in zip(groups, given, strict=True) if held
                  for item in items[start : start + _PATHS_AT_ONCE]]  # fmt: skip
        firsts = iter(self._pack(chosen, frames=1).stack(range(len(chosen))) if chosen else ())
        weights = [tensors_hash(part.state_dict()) for part in (model, self.autoencoder)]
        settings = config.model_dump_json(
            include={"chunk", "levels", "teacher_guidance", "teacher_steps"}
        )
        size = f"{self.side}:{self.latent_frames}:{self.seed}"
        source = fingerprint(*weights, settings, size)
        parts = []
        for start, held in zip(groups, given, strict=True):
            some = texts[start : start + _PATHS_AT_ONCE]
            first = torch.stack([next(firsts) for _ in some]) if held else None
            parts.append(self._kept_paths(source, model, some, first, start))
        cells = [held for held in given for _ in range(_PATHS_AT_ONCE)]
        return Paths(texts, torch.cat(parts), cells[: len(items)], config.levels)

    def _kept_paths(
        self, source: str, model: Any, texts: list[str], first: Tensor | None, number: int
    ) -> Tensor:
        """Paths of some captions, the first of them the `number`th; see `follow`."""
        start = "" if first is None else tensors_hash({"first": first})
        name = fingerprint(source, str(number), start, *texts)
        config = self.config

        def compute() -> Tensor:
            seed = derived_seed(self.seed, "paths", number)
            noise = torch.randn(
                (len(texts), *self.latent_shape), generator=torch.Generator().manual_seed(seed)
            )
            embeds, mask = self.text.batch([""] * len(texts) + texts)
            place = self.device
            predict = ChunkPredictor(
                model, embeds.to(place), mask.to(place), config.teacher_guidance
            )
            given = None if first is None else first.to(place)
            with torch.autocast(place.type, torch.bfloat16, enabled=self.half):
                made = follow(predict, noise.to(place), config, first=given)
            return made.to("cpu", torch.float16)

        path = self.folder / "paths" / f"{name}.safetensors"
        return kept_tensor(path, compute, f"paths from number {number} on")

    def make_batch(self, position: Position) -> Batch:
        """Points of paths, a level drawn for each chunk, as latents, noise and levels."""
        indices = self.path_order.indices(position, self.batch_size)
        seed = derived_seed(self.seed, "levels", position.micro, position.rank)
        generator = torch.Generator().manual_seed(seed)
        chunks = chunk_lengths(self.latent_frames, self.config.chunk)
        steps = len(self.config.levels)
        drawn = torch.randint(steps, (len(indices), len(chunks)), generator=generator)
        tensors = self.paths.batch(indices, drawn.repeat_interleave(torch.tensor(chunks), dim=1))
        embeds, mask = self.text.batch([self.paths.texts[index] for index in indices])
        keys = [f"path {index}: {self.paths.texts[index]}" for index in indices]
        return Batch(keys, {**tensors, "text": embeds, "text_mask": mask})

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """Mean square error of the velocity at each level, on paths that are not trained on."""
        steps, paths = len(self.config.levels), self.measured_paths
        losses: list[list[float]] = [[] for _ in range(steps)]
        for start in range(0, len(paths.texts), _PATHS_AT_ONCE):
            indices = list(range(start, min(start + _PATHS_AT_ONCE, len(paths.texts))))
            embeds, mask = self.text.batch([paths.texts[index] for index in indices])
            for step in range(steps):
                at = torch.full((len(indices), self.latent_frames), step)
                batch = {**paths.batch(indices, at), "text": embeds, "text_mask": mask}
                out = self.objective({key: tensor.to(device) for key, tensor in batch.items()})
                losses[step] += out["per_sample"].tolist()
        means = [float(np.mean(some)) for some in losses]
        return {"pair_loss": float(np.mean(means))} | {
            f"pair_loss_{step}": mean for step, mean in enumerate(means)
        }


@dataclass(frozen=True)
class Paths:
    """Paths of a teacher from noise to clips.

    Attributes:
        texts: caption of each.
        points: `[N, levels + 1, Z, F, y, x]` fp16, at each level and at the end.
        given: whether the first latent frame of each was given.
        levels: falling from 1.
    """

    texts: list[str]
    points: Tensor
    given: list[bool]
    levels: tuple[float, ...]

    def batch(self, indices: list[int], steps: Tensor) -> dict[str, Tensor]:
        """Latents, levels, and the noise for which the noisy latents are points of the paths.

        Args:
            indices: B of the paths.
            steps: `[B, F]`, number of the level of each frame.
        """
        points = self.points[indices].float()
        latents = points[:, -1]
        frames = steps[:, None, None, :, None, None].expand(-1, -1, *latents.shape[1:2], -1,
                                                            *latents.shape[3:])  # fmt: skip
        noisy = points.gather(1, frames).squeeze(1)  # [B, Z, F, y, x]
        sigmas = torch.tensor(self.levels)[steps]
        noise = latents + x0_to_velocity(noisy, latents, levels_of(sigmas, latents))
        sigmas[torch.tensor([self.given[index] for index in indices]), 0] = 0.0
        return {"latents": latents, "noise": noise, "sigmas": sigmas}


def path_levels(levels: tuple[float, ...], steps: int) -> list[float]:
    """Levels of a teacher, to 0, that takes `steps` steps between two levels of its student."""
    parts = [np.linspace(high, low, steps, endpoint=False) for high, low in pairwise((*levels, 0))]
    return [*np.concatenate(parts).tolist(), 0.0]


def follow(
    predict: ChunkPredictor, noise: Tensor, config: FewStepPairsTask, *, first: Tensor | None
) -> Tensor:
    """Where the teacher passes on its way from noise to a clip, made chunk by chunk.

    Args:
        predict: the teacher.
        noise: `[B, Z, F, y, x]`.
        config: levels, steps and chunk.
        first: first latent frame that is given, `[B, Z, 1, y, x]`.

    Returns:
        `[B, levels + 1, Z, F, y, x]`: at each level, and the end.
    """
    sigmas, every = path_levels(config.levels, config.teacher_steps), config.teacher_steps
    passed: list[Tensor] = []

    def make_chunk(start: Tensor, state: State, clean: Tensor | None) -> Tensor:
        points = [hold_frames(start, clean)]

        def mark(index: int, x: Tensor) -> None:
            if (index + 1) % every == 0:
                points.append(x)

        made = many_step_chunk(predict, start, state, sigmas, clean=clean, after_step=mark)
        passed.append(torch.stack(points, dim=1))
        return made

    make_video(predict, noise, config.chunk, make_chunk, first)
    return torch.cat(passed, dim=3)
