"""The text as the models of one call read it: projected once, reused at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sana_like_pipelines.guidance import BranchTexts
from sana_like_pipelines.prompts import PromptFeatures

TENSOR_NAMES = {
    "prompt_embeds": "embeds",
    "prompt_attention_mask": "mask",
    "negative_prompt_embeds": "negative_embeds",
    "negative_prompt_attention_mask": "negative_mask",
}
"""Names in callbacks, and the fields of `PromptFeatures` that they mean."""


class Conditioning:
    """Text contexts of every model that reads text.

    Args:
        models: the transformer, and the ControlNets where there are any.
        features: of P prompts.
        per_prompt: pictures per prompt.
    """

    def __init__(self, models: Sequence[Any], features: PromptFeatures, per_prompt: int) -> None:
        self.models = list(models)
        self._prepare(features, per_prompt)

    def __getitem__(self, model: int) -> BranchTexts:
        """The text of model number `model`, with B rows per branch."""
        return self._texts[model]

    def tensors(self) -> dict[str, Tensor | None]:
        """Embeddings and masks with B rows, under the names that callbacks use."""
        rows = self._features.repeated(self._per_prompt)
        return {name: getattr(rows, field) for name, field in TENSOR_NAMES.items()}

    def update(self, tensors: Mapping[str, Tensor]) -> None:
        """Project the text anew if tensors with B rows that a callback gave back are others.

        Raises:
            ValueError: another number of rows.
        """
        rows = self._features.repeated(self._per_prompt)
        changes: dict[str, Any] = {}
        for name, value in tensors.items():
            before = getattr(rows, TENSOR_NAMES[name])
            if before is None or len(value) != len(before):
                raise ValueError(
                    f"the callback returned {name} with {len(value)} rows; it was given "
                    f"{'none' if before is None else len(before)}"
                )
            if value.shape != before.shape or not torch.equal(value, before):
                changes[TENSOR_NAMES[name]] = value
        if changes:
            self._prepare(replace(rows, **changes), 1)

    def _prepare(self, features: PromptFeatures, per_prompt: int) -> None:
        self._features, self._per_prompt = features, per_prompt
        self._texts = [self._of_model(model) for model in self.models]

    def _of_model(self, model: Any) -> BranchTexts:
        features, times = self._features, self._per_prompt
        prompt = model.prepare_text(features.embeds.to(model.dtype), features.mask)
        if features.negative_embeds is None:
            return BranchTexts(prompt.repeat(times), None)
        negative = model.prepare_text(
            features.negative_embeds.to(model.dtype), features.negative_mask
        )
        return BranchTexts(prompt.repeat(times), negative.repeat(times))
