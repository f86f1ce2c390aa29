"""Hidden states of token sequences that share a beginning, from any decoder of ``transformers``.

The shared beginning (the instruction) is read once and its keys and values are kept. That is exact:
in a causal decoder no later token changes them.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

__all__ = ["PrefixDecoder", "decoder_stack"]


def decoder_stack(model: nn.Module) -> PreTrainedModel:
    """The decoder without its language-model head; ``model`` itself if it has none.

    Raises:
        ValueError: not a model of ``transformers``.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"the text encoder is a {type(model).__name__}: give a decoder of transformers "
            "(AutoModel or AutoModelForCausalLM)"
        )
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    return decoder if isinstance(decoder, PreTrainedModel) else model


class PrefixDecoder:
    """Runs a decoder over sequences, reading a common prefix only once.

    Args:
        model: decoder stack (``AutoModel``) or a causal language model around it.
        hidden_layer: index into its hidden states, ``None`` for the last one after the final norm.

    Raises:
        ValueError: the decoder has fewer layers than ``hidden_layer``.
    """

    def __init__(self, model: nn.Module, hidden_layer: int | None) -> None:
        self.model = decoder_stack(model)
        self.hidden_layer = hidden_layer
        config = self.model.config.get_text_config()
        if hidden_layer is not None and hidden_layer > config.num_hidden_layers:
            raise ValueError(
                f"hidden_layer is {hidden_layer}, but the text encoder has "
                f"{config.num_hidden_layers} layers"
            )
        # Releases of transformers 5 differ in the name of this argument.
        names = inspect.signature(type(self.model).forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._prefix: tuple[tuple[Any, ...], torch.Tensor, DynamicCache] | None = None

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return next(self.model.parameters()).dtype

    def forget(self) -> None:
        """Drop the kept prefix, after the weights were changed in place."""
        self._prefix = None

    @torch.no_grad()
    def hidden_states(
        self,
        sequences: Sequence[Sequence[int]],
        prefix: Sequence[int],
        *,
        batch_size: int,
        device: torch.device,
    ) -> list[torch.Tensor]:
        """Hidden states of every sequence, the prefix's part included.

        Args:
            sequences: token ids; each is longer than ``prefix`` and begins with it.
            prefix: ids that all sequences begin with; may be empty.
            batch_size: how many sequences run at once.
            device: where the decoder computes.

        Returns:
            One ``[n, C]`` per sequence of n ids, in the decoder's dtype.
        """
        order = sorted(range(len(sequences)), key=lambda row: len(sequences[row]))
        results: dict[int, torch.Tensor] = {}
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            rests = [sequences[row][len(prefix) :] for row in rows]
            head, states = self._run(rests, tuple(prefix), device)
            for row, rest, state in zip(rows, rests, states, strict=True):
                results[row] = torch.cat([head, state[: len(rest)]])  # [n, C]
        return [results[row] for row in range(len(sequences))]

    def _run(
        self, rests: list[Sequence[int]], prefix: tuple[int, ...], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states of the prefix ``[P, C]`` and of the right-padded rests ``[B, R, C]``."""
        from transformers import DynamicCache

        count, longest = len(rests), max(map(len, rests))
        ids = torch.zeros(count, longest, dtype=torch.long)
        mask = torch.zeros(count, len(prefix) + longest, dtype=torch.long)
        mask[:, : len(prefix)] = 1
        for row, rest in enumerate(rests):
            ids[row, : len(rest)] = torch.tensor(rest)
            mask[row, len(prefix) : len(prefix) + len(rest)] = 1
        if not prefix:
            cache = DynamicCache(config=self.model.config)
            states = self._forward(ids.to(device), mask.to(device), cache)
            return states.new_empty(0, states.shape[-1]), states
        head, kept = self._read_prefix(prefix, device)
        cache = copy.deepcopy(kept)
        cache.batch_repeat_interleave(count)
        return head, self._forward(ids.to(device), mask.to(device), cache)

    def _read_prefix(
        self, prefix: tuple[int, ...], device: torch.device
    ) -> tuple[torch.Tensor, DynamicCache]:
        from transformers import DynamicCache

        kept_for = (prefix, device, self.dtype)
        if self._prefix is None or self._prefix[0] != kept_for:
            cache = DynamicCache(config=self.model.config)
            ids = torch.tensor([prefix], device=device)
            head = self._forward(ids, torch.ones_like(ids), cache)[0]  # [P, C]
            self._prefix = (kept_for, head, cache)
        return self._prefix[1:]

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """``ids [B, R]``, ``mask [B, P + R]`` -> ``[B, R, C]``; extends ``cache`` in place."""
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=True,
            output_hidden_states=self.hidden_layer is not None,
            **{self._cache_argument: cache},
        )
        if self.hidden_layer is None:
            return output.last_hidden_state
        return output.hidden_states[self.hidden_layer]
