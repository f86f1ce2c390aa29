"""Layers over time that never look ahead, and what they remember between chunks of a clip.

Each reads the last frames before its own, so a clip can be worked on in chunks: a cache of the
last one or two frames of each layer is all that the next chunk needs, however long the clip. The
past of the first frame is that frame standing still, so that a picture is a clip of one frame.

Legend: `B` batch, `T` frames at the layer's own rate, `Y`, `X` grid, `C` channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sana_like.layers.linear import Linear
from sana_like.layers.norm import channel_norm

TAPS = 3


@dataclass(frozen=True)
class CausalCache:
    """The last frames that each layer has seen; a value, which no pass changes.

    Attributes:
        frames: each `[B, k, Y, X, C]` (or with time on another axis), in the order in which the
            layers ran.
    """

    frames: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; the same after every chunk."""
        return sum(tensor.nbytes for tensor in self.frames)

    def to(self, device: torch.device | str) -> CausalCache:
        """Moved to a device."""
        return CausalCache(tuple(tensor.to(device) for tensor in self.frames))

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {f"{index:04d}": tensor for index, tensor in enumerate(self.frames)}

    def settings(self) -> dict[str, Any]:
        """What is not a tensor, as JSON values."""
        return {"layers": len(self.frames)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Inverse of `tensors` and `settings`.

        Raises:
            ValueError: they do not belong together.
        """
        names = [f"{index:04d}" for index in range(len(tensors))]
        if sorted(tensors) != names or settings.get("layers") != len(names):
            raise ValueError(f"these are not the tensors of a cache: {sorted(tensors)}")
        return cls(tuple(tensors[name] for name in names))


class CausalPass:
    """One pass over a chunk: gives each layer its past and keeps what the next chunk needs.

    Args:
        cache: of the chunks before; `None` at the start of a clip.
    """

    def __init__(self, cache: CausalCache | None) -> None:
        self.starts = cache is None
        self._before = iter(() if cache is None else cache.frames)
        self._after: list[Tensor] = []

    def with_past(
        self, x: Tensor, keep: int, at_start: int | None = None, *, dim: int = 1
    ) -> Tensor:
        """`[B, T, Y, X, C]` with the frames before it.

        Args:
            x: the chunk at this layer.
            keep: frames that the next chunk needs of this one and its past.
            at_start: frames to put before the first of all; default `keep`.
            dim: the axis of time.

        Raises:
            ValueError: the cache belongs to another model, batch or size.
        """
        if self.starts:
            past = [x.narrow(dim, 0, 1)] * (keep if at_start is None else at_start)
        else:
            past = [next(self._before, x.narrow(dim, 0, 0))]
            wanted = list(x.shape)
            wanted[dim] = keep
            if list(past[0].shape) != wanted:
                raise ValueError(
                    f"the cache has frames of shape {list(past[0].shape)} where this chunk needs "
                    f"{wanted}; it comes from another model, batch or size"
                )
        joined = torch.cat([*past, x], dim=dim)
        # A copy: a view would keep the whole chunk in memory.
        self._after.append(joined.narrow(dim, joined.shape[dim] - keep, keep).clone())
        return joined

    def cache(self) -> CausalCache:
        """What the next chunk needs, after the last layer has run.

        Raises:
            ValueError: the cache has frames of more layers than ran.
        """
        if next(self._before, None) is not None:
            raise ValueError("the cache has frames for more layers than this model has")
        return CausalCache(tuple(self._after))


def windows(joined: Tensor, step: int = 1) -> Tensor:
    """Three frames at a time: `[B, T + 2, Y, X, C]` to `[B, T / step, Y, X, 3*C]`."""
    last = joined.shape[1] - TAPS + 1
    return torch.cat([joined[:, i : last + i : step] for i in range(TAPS)], dim=-1)


class CausalBlock(nn.Module):
    """A frame and the two before it, a residual; a new one changes nothing.

    Args:
        channels: C of input and output.
        norm_type: norm after the projection, see `layers.norm.channel_norm`.
    """

    def __init__(self, channels: int, norm_type: str) -> None:
        super().__init__()
        self.conv = Linear(TAPS * channels, channels)
        self.point = Linear(channels, channels, bias=False)
        norm: Any = channel_norm(norm_type, channels)
        nn.init.zeros_(norm.weight)
        nn.init.zeros_(norm.bias)
        self.norm = norm

    def forward(self, x: Tensor, run: CausalPass) -> Tensor:
        """`[B, T, Y, X, C]` to the same shape."""
        hidden = F.silu(self.conv(windows(run.with_past(x, TAPS - 1))))
        out = self.norm(self.point(hidden).flatten(0, 1))
        return x + out.unflatten(0, x.shape[:2])


class HalveTime(nn.Module):
    """The first frame alone, then two frames to one; a new one takes their mean.

    Args:
        channels: C of input and output.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Linear(TAPS * channels, channels, bias=False)
        nn.init.zeros_(self.conv.weight)

    def forward(self, x: Tensor, run: CausalPass) -> Tensor:
        """`[B, T, Y, X, C]` to `[B, (T + 1) / 2, ...]` at the start of a clip, `T / 2` later."""
        joined = run.with_past(x, keep=1, at_start=2)
        last = joined.shape[1]
        mean = (joined[:, 1 : last - 1 : 2] + joined[:, 2::2]) / 2
        return mean + self.conv(windows(joined, step=2))


class DoubleTime(nn.Module):
    """The first frame alone, then one frame to two; a new one repeats them.

    Args:
        channels: C of input and output.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Linear(TAPS * channels, 2 * channels, bias=False)
        nn.init.zeros_(self.conv.weight)

    def forward(self, x: Tensor, run: CausalPass) -> Tensor:
        """`[B, T, Y, X, C]` to `[B, 2T - 1, ...]` at the start of a clip, `2T` later."""
        twice = self.conv(windows(run.with_past(x, TAPS - 1))).unflatten(-1, (2, -1))
        frames = (twice + x.unsqueeze(-2)).movedim(-2, 2).flatten(1, 2)  # [B, 2T, Y, X, C]
        return frames[:, 1:] if run.starts else frames


def causal_stages(
    widths: Sequence[int],
    layers: Sequence[int],
    halved_after: Sequence[int],
    norm_type: str,
    resample: type[nn.Module],
) -> nn.ModuleList:
    """Layers over time for each stage: blocks, and the step between this stage and the next.

    Args:
        widths: channels per stage.
        layers: blocks per stage.
        halved_after: stages after which the encoder halves time.
        norm_type: of the blocks.
        resample: `HalveTime` or `DoubleTime`.

    Returns:
        A `ModuleDict` for each stage with `blocks` and, where time is resampled, `resample`.
    """
    stages = nn.ModuleList()
    for index, (width, count) in enumerate(zip(widths, layers, strict=True)):
        parts: dict[str, nn.Module] = {
            "blocks": nn.ModuleList(CausalBlock(width, norm_type) for _ in range(count))
        }
        if index in halved_after:
            parts["resample"] = resample(width)
        stages.append(nn.ModuleDict(parts))
    return stages
