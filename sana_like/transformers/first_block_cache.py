"""First-block cache: skip the blocks after the first where the first says that little changed.

Along a sampling run the residuals of a transformer's blocks change slowly, and the first block's
residual changes about as much as the sum of the others. So it is computed at every step, and the
others only when it has moved far enough since they were last run; between, what they added then is
added again.

Sources: TeaCache, arXiv 2411.19108 (step-wise reuse by a cheap indicator); first-block cache,
ParaAttention.

Legend: `B` pictures, `R` rows of a pass (B for each branch of guidance), `N` tokens, `C` width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sana_like.layers.rope import Rope
from sana_like.transformers.text_context import TextContext


class BlockInputs(NamedTuple):
    """What the blocks of one forward pass read beside the stream; one row per row of the batch."""

    modulation: Tensor
    """`[R, 6, C]`, or `[R, F, 6, C]` for one of each frame."""
    text: TextContext
    grid: tuple[int, int, int]
    residuals: tuple[Tensor, ...] = ()
    """Of ControlNets, `[R, N, C]`; number j is added after block j + 1."""
    perturbed: frozenset[int] = frozenset()
    """Blocks in which the rows of `bypass` skip the mixer."""
    bypass: Tensor | None = None
    """bool `[R]`."""
    skipped: frozenset[int] = frozenset()
    """Blocks that the rows of `bypass` skip whole."""
    rope: Rope | None = None
    """Positions of the tokens."""

    def rows(self, index: Tensor) -> BlockInputs:
        """The chosen rows, `index` int64 `[r]`."""
        return self._replace(
            modulation=self.modulation[index],
            text=self.text.rows(index),
            residuals=tuple(residual[index] for residual in self.residuals),
            bypass=None if self.bypass is None else self.bypass[index],
        )


Blocks = Callable[[Tensor, BlockInputs, int, int | None], Tensor]
"""Stream `[R, N, C]`, inputs, first block and end to the stream behind the last of them."""


@dataclass
class _Branch:
    """Of one branch of guidance, at the step in which each row was last run whole."""

    first: Tensor
    """Residual of the first block, `[B, N, C]`."""
    rest: Tensor
    """Sum of the residuals of the others, `[B, N, C]`."""


class FirstBlockCache:
    """The cache of one sampling run; made anew for every call.

    Every row (a picture in a branch) decides for itself, so a picture is the same alone and in a
    batch, and those rows that are run whole are run as a smaller batch.

    Args:
        threshold: a row is run whole when `mean |r - r'| / mean |r'|` is at least this, where `r`
            is the first block's residual and `r'` that of the step in which the row was last run
            whole; fp32 sums.

    Attributes:
        blocks_run, blocks_in_all: per picture, with and without the cache, over all passes so far.
        passes_skipped: per picture, rows that were not run whole.

    Raises:
        ValueError: a threshold that is not a positive finite number.
    """

    def __init__(self, threshold: float) -> None:
        number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
        if not number or not (threshold > 0 and math.isfinite(threshold)):
            raise ValueError(
                f"the first-block cache has threshold {threshold!r}; give a positive number, such "
                "as 0.1, or None for no cache"
            )
        self.threshold = float(threshold)
        self.blocks_run: list[int] = []
        self.blocks_in_all: list[int] = []
        self.passes_skipped: list[int] = []
        self._branches: dict[tuple[str, bool], _Branch] = {}
        self._whole = True

    def begin_step(self, step: int, steps: int) -> None:
        """Say which of `steps` evaluations comes next; the first and the last are run whole."""
        self._whole = step in (0, steps - 1)

    def for_pass(self, branches: Sequence[str]) -> PassCache:
        """What a forward pass takes whose batch holds these branches, B rows of each."""
        return PassCache(self, tuple(branches))

    def record(self, picture: int) -> dict[str, Any]:
        """What the cache did for a picture, for its recipe."""
        return {
            "threshold": self.threshold,
            "blocks_run": self.blocks_run[picture],
            "blocks_in_all": self.blocks_in_all[picture],
            "passes_skipped": self.passes_skipped[picture],
        }

    def _changed(self, keys: Sequence[tuple[str, bool]], first: Tensor) -> list[bool]:
        """For each of R rows whether it must be run whole."""
        if self._whole:
            return [True] * len(first)
        changes = [
            _change(self._branches.get(key), part)
            for key, part in zip(keys, first.chunk(len(keys)), strict=True)
        ]
        # Not "at least": NaN must be run whole, where it is found.
        return [not change < self.threshold for change in torch.cat(changes).tolist()]

    def _count(self, whole: Sequence[bool], pictures: int, blocks: int) -> None:
        for counts in (self.blocks_run, self.blocks_in_all, self.passes_skipped):
            counts.extend([0] * (pictures - len(counts)))
        for row, run in enumerate(whole):
            picture = row % pictures
            self.blocks_run[picture] += blocks if run else 1
            self.blocks_in_all[picture] += blocks
            self.passes_skipped[picture] += not run


class PassCache:
    """The cache as one forward pass sees it; see `FirstBlockCache.for_pass`."""

    def __init__(self, cache: FirstBlockCache, branches: tuple[str, ...]) -> None:
        self.cache, self.branches = cache, branches

    def run(self, blocks: Blocks, x: Tensor, inputs: BlockInputs, count: int) -> Tensor:
        """Run the first block, and the others for the rows that need them.

        Args:
            blocks: runs a range of the model's blocks.
            x: `[R, N, C]`, R a multiple of the number of branches.
            inputs: of all rows.
            count: number of blocks.

        Returns:
            `[R, N, C]`.
        """
        cache = self.cache
        # Control that sets in or ends changes the others' residuals and not the first's.
        keys = [(branch, bool(inputs.residuals)) for branch in self.branches]
        after = blocks(x, inputs, 0, 1)
        first = after - x
        whole = cache._changed(keys, first)
        cache._count(whole, len(x) // len(keys), count)
        if all(whole):
            out = blocks(after, inputs, 1, None)
            self._keep(keys, first, out - after)
            return out
        out = after + torch.cat([cache._branches[key].rest for key in keys])
        chosen = [row for row, run in enumerate(whole) if run]
        if chosen:
            index = torch.tensor(chosen, device=x.device)
            part = blocks(after[index], inputs.rows(index), 1, None)
            out[index] = part
            self._keep_rows(keys, chosen, first, part - after[index])
        return out

    def _keep(self, keys: Sequence[tuple[str, bool]], first: Tensor, rest: Tensor) -> None:
        parts = zip(keys, first.chunk(len(keys)), rest.chunk(len(keys)), strict=True)
        for key, first_part, rest_part in parts:
            self.cache._branches[key] = _Branch(first_part, rest_part)

    def _keep_rows(
        self, keys: Sequence[tuple[str, bool]], rows: Sequence[int], first: Tensor, rest: Tensor
    ) -> None:
        pictures = len(first) // len(keys)
        for place, row in enumerate(rows):
            branch = self.cache._branches[keys[row // pictures]]
            branch.first[row % pictures] = first[row]
            branch.rest[row % pictures] = rest[place]


def _change(before: _Branch | None, first: Tensor) -> Tensor:
    """Relative change of a branch's rows, fp32 `[B]`; infinite where there is nothing before."""
    if before is None or before.first.shape != first.shape:
        return torch.full((len(first),), math.inf, device=first.device)
    moved = (first - before.first).abs().mean((1, 2), dtype=torch.float32)
    return moved / before.first.abs().mean((1, 2), dtype=torch.float32)
