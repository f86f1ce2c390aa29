"""What the stages that make a model of few steps share: their clips, captions and sample sheet."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sana_like.schedulers.chunked import few_step_chunk
from sana_like.state import State
from sana_like_train.config import Recipe
from sana_like_train.data.clip_items import ClipItem, real_item
from sana_like_train.tasks.base import Position, derived_seed
from sana_like_train.tasks.chunk_causal import ChunkPredictor, make_video
from sana_like_train.tasks.clip_selection import MixedOrder, drawn_items, with_captions
from sana_like_train.tasks.video import VideoTraining
from sana_like_train.video_sections import FewStepTask


class FewStepTraining(VideoTraining):
    """Base of the stages after the block-causal one; see `video_sections.FewStepTask`.

    Args:
        recipe: the resolved recipe.
        model: the student.
        device: where latents and text features are computed.
    """

    config: FewStepTask

    def __init__(self, recipe: Recipe, model: Any, device: torch.device) -> None:
        task = recipe.task
        assert isinstance(task, FewStepTask)
        super().__init__(recipe, model, task.clips, task.evaluate_clips, device)
        self.chunk, self.levels = task.chunk, task.levels
        drawn = drawn_items(self.records.pictures.train, self.clips, self.seed)
        real = [real_item(record) for record in self.records.clips.train]
        kept = self.clips.captions
        self.items = [with_captions(drawn, kept), with_captions(real, kept)]
        self.order = MixedOrder(len(drawn), len(real), self.clips.share, self.seed)

    def _items_at(self, position: Position, count: int, purpose: str) -> list[ClipItem]:
        """Clips of a position, as a function of it and of the seed."""
        seed = derived_seed(self.seed, purpose, position.micro, position.rank)
        chosen = self.order.indices(position, count, np.random.default_rng(seed))
        return [self.items[kind][index] for kind, index in chosen]

    def _make(self, noise: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        rows = len(noise)
        predict = ChunkPredictor(self.exported, text[rows:], mask[rows:])
        return few_step_video(predict, noise, self.config.chunk, self.config.levels)


def few_step_video(
    predict: ChunkPredictor,
    noise: Tensor,
    chunk: int,
    levels: tuple[float, ...],
    first: Tensor | None = None,
) -> Tensor:
    """A video in few steps a chunk, as `SanaLongVideoPipeline` makes it.

    Noise between the steps is a function of the start noise alone: sheets and measures of different
    moments compare.

    Args:
        predict: the student.
        noise: of all frames, `[B, Z, F, y, x]`.
        chunk: latent frames of a chunk.
        levels: of the steps.
        first: first latent frame that is given, `[B, Z, 1, y, x]`.
    """
    seed = int(noise.flatten()[:8].double().abs().sum() * 2**20)
    generator = torch.Generator().manual_seed(seed)

    def make_chunk(start: Tensor, state: State, clean: Tensor | None) -> Tensor:
        def draw(frames: int) -> Tensor:
            shape = (*start.shape[:2], frames, *start.shape[3:])
            return torch.randn(shape, generator=generator).to(start)

        return few_step_chunk(predict, start, state, draw, levels=levels, clean=clean)

    return make_video(predict, noise, chunk, make_chunk, first)
