"""The text as the blocks read it: keys and values, projected once per prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def real_tokens(mask: Tensor, batch: int, length: int) -> Tensor:
    """A checked boolean mask in which every row has a token to read.

    A row without any real token reads all of its tokens, which is what the additive mask of the
    published models' code comes to. (A softmax over nothing would be NaN.)

    Args:
        mask: `[B, L]`, non-zero where a token is real.
        batch, length: B and L of the text.

    Returns:
        bool `[B, L]`.

    Raises:
        ValueError: another shape.
    """
    if tuple(mask.shape) != (batch, length):
        raise ValueError(
            f"the text mask has shape {tuple(mask.shape)}, the text [{batch}, {length}]; give one "
            "number for each token, non-zero where it is real"
        )
    mask = mask.bool()
    return mask | ~mask.any(dim=1, keepdim=True)


@dataclass(frozen=True)
class TextContext:
    """Keys and values of every block for a batch of prompts; made by `model.prepare_text`.

    Attributes:
        keys, values: one tensor `[B, H, L, D]` for each block.
        mask: bool `[B, L]`, true where a token is real; `None` where all are.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None = None

    def __len__(self) -> int:
        """Number of rows B."""
        return self.keys[0].shape[0]

    @property
    def tokens(self) -> int:
        """Number of token slots L, padding included."""
        return self.keys[0].shape[2]

    @staticmethod
    def cat(contexts: Sequence[TextContext]) -> TextContext:
        """Rows of all contexts, one after the other, padded to the longest.

        Raises:
            ValueError: no context, or contexts of different models.
        """
        if not contexts:
            raise ValueError("TextContext.cat needs at least one context")
        kinds = {tuple((k.shape[1], k.shape[3]) for k in c.keys) for c in contexts}
        if len(kinds) > 1:
            raise ValueError(
                "these text contexts were prepared by different models (blocks, heads or head "
                "widths differ); prepare every prompt with the model that will read it"
            )
        length = max(c.tokens for c in contexts)
        padded = [c._pad(length) for c in contexts]
        mask = None
        if any(c.mask is not None for c in padded):
            mask = torch.cat([c._full_mask() for c in padded])
        return TextContext(
            tuple(torch.cat(parts) for parts in zip(*(c.keys for c in padded), strict=True)),
            tuple(torch.cat(parts) for parts in zip(*(c.values for c in padded), strict=True)),
            mask,
        )

    def repeat(self, times: int) -> TextContext:
        """Each row `times` times in a row: a b becomes a a b b."""
        return self._map(lambda tensor: tensor.repeat_interleave(times, dim=0))

    def rows(self, index: slice | Sequence[int] | Tensor) -> TextContext:
        """The chosen rows, as a batch of their own."""
        return self._map(lambda tensor: tensor[index])

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TextContext:
        """Moved or cast; the mask is moved and stays boolean."""
        return self._map(lambda t: t.to(device, None if t.dtype == torch.bool else dtype))

    def _map(self, change: Callable[[Tensor], Tensor]) -> TextContext:
        return TextContext(
            tuple(change(key) for key in self.keys),
            tuple(change(value) for value in self.values),
            None if self.mask is None else change(self.mask),
        )

    def _full_mask(self) -> Tensor:
        if self.mask is not None:
            return self.mask
        key = self.keys[0]
        return torch.ones(len(self), self.tokens, dtype=torch.bool, device=key.device)

    def _pad(self, length: int) -> TextContext:
        extra = length - self.tokens
        if extra == 0:
            return self
        return TextContext(
            tuple(F.pad(key, (0, 0, 0, extra)) for key in self.keys),
            tuple(F.pad(value, (0, 0, 0, extra)) for value in self.values),
            F.pad(self._full_mask(), (0, extra)),
        )
