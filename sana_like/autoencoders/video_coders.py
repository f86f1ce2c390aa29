"""Encoder and decoder of clips: those of pictures, frame by frame, with layers over time between.

The layers over time are where the grid is small, below the split of `coders`, so the high
resolutions are worked on frame by frame, and tile by tile where asked.

Legend: `B` batch, `T` frames, `t` latent frames, `Y`, `X` picture, `y`, `x` latent grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from sana_like.autoencoders.causal import CausalPass, DoubleTime, HalveTime, causal_stages
from sana_like.autoencoders.coders import Decoder, Encoder
from sana_like.autoencoders.resample import DownBlock, UpBlock

Frames = Callable[[Tensor], Tensor]


def over_time(layers: Iterable[nn.Module], x: Tensor, batch: int, run: CausalPass) -> Tensor:
    """Layers over time on frames that stand in the batch, `[B*T, Y, X, C]` to `[B*T', ...]`."""
    clip = x.unflatten(0, (batch, -1))
    for layer in layers:
        clip = layer(clip, run)
    return clip.flatten(0, 1)


class VideoEncoder(Encoder):
    """Clip to latent. Arguments as in `Encoder`, and `temporal_layers`, `temporal_stages`."""

    def __init__(
        self,
        *args: Any,
        temporal_layers: Sequence[int],
        temporal_stages: Sequence[int],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.temporal = causal_stages(
            kwargs["widths"], temporal_layers, temporal_stages, kwargs["norm_type"], HalveTime
        )

    def forward(  # type: ignore[override]
        self, x: Tensor, run: CausalPass, shallow: Frames
    ) -> Tensor:
        """Encode a chunk.

        Args:
            x: `[B, T, Y, X, in]`.
            run: the pass over the chunk.
            shallow: computes `self.shallow` of `[B*T, Y, X, in]`, whole or in parts.

        Returns:
            `[B, t, y, x, Z]`.
        """
        batch = len(x)
        x = shallow(x.flatten(0, 1))
        stages = zip(self.down_blocks[self.split :], self.temporal[self.split :], strict=True)
        for stage, temporal in stages:
            blocks = _blocks(stage)
            down = [blocks.pop()] if blocks and isinstance(blocks[-1], DownBlock) else []
            x = over_time(_layers(temporal), self.run([blocks], x), batch, run)
            x = self.run([down], x)
        return self.to_latent(x).unflatten(0, (batch, -1))


class VideoDecoder(Decoder):
    """Latent to clip. Arguments as in `Decoder`, and `temporal_layers`, `temporal_stages`."""

    def __init__(
        self,
        *args: Any,
        temporal_layers: Sequence[int],
        temporal_stages: Sequence[int],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.temporal = causal_stages(
            kwargs["widths"], temporal_layers, temporal_stages, kwargs["out_norm_type"], DoubleTime
        )

    def forward(  # type: ignore[override]
        self, z: Tensor, run: CausalPass, shallow: Frames
    ) -> Tensor:
        """Decode a chunk.

        Args:
            z: `[B, t, y, x, Z]`.
            run: the pass over the chunk.
            shallow: computes `self.shallow` of features `[B*T, ...]`, whole or in parts.

        Returns:
            `[B, T, Y, X, out]`.
        """
        batch = len(z)
        x = self.from_latent(z.flatten(0, 1))
        for stage, temporal in zip(
            self.up_blocks[self.split :][::-1], self.temporal[self.split :][::-1], strict=True
        ):
            blocks = _blocks(stage)
            up = [blocks.pop(0)] if blocks and isinstance(blocks[0], UpBlock) else []
            x = self.run([up], x)
            over: Any = temporal
            x = over_time([over["resample"]] if "resample" in over else [], x, batch, run)
            x = over_time(over["blocks"], self.run([blocks], x), batch, run)
        return shallow(x).unflatten(0, (batch, -1))


def _blocks(stage: Any) -> list[nn.Module]:
    return list(stage)


def _layers(temporal: Any) -> list[nn.Module]:
    """Blocks, then the step to the next stage."""
    return [*temporal["blocks"], *([temporal["resample"]] if "resample" in temporal else [])]
