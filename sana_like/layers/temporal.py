"""The feed-forward of video models: GLUMBConv in each frame, then a convolution over time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sana_like.layers.glu_mbconv import GLUMBConv
from sana_like.layers.pointwise import KernelLinear
from sana_like.state import Tensors, chunk_spans

TAPS = 3


def temporal_windows(frames: Tensor, past: Tensor | None, chunks: Sequence[int]) -> Tensor:
    """What a convolution with three taps over time reads at each frame.

    A window never reaches into the next chunk: there, and before the first frame of all, it holds
    zeros.

    Args:
        frames: `[B, F, S, C]`.
        past: `[B, 1, S, C]`, the frame before the first, or `None`.
        chunks: frames of each chunk, F in all.

    Returns:
        `[B, F, S, 3*C]`: the frame before, the frame, the frame after.
    """
    edge = torch.zeros_like(frames[:, :1])
    before = torch.cat([edge if past is None else past, frames[:, :-1]], dim=1)
    parts = []
    for span in chunk_spans(chunks):
        parts += [frames[:, span.start + 1 : span.stop], edge]
    return torch.cat([before, frames, torch.cat(parts, dim=1)], dim=-1)


class TemporalConv(KernelLinear):
    """A full convolution of three taps over time, held as `[O, 3*I]` with the taps in order.

    Args:
        channels: of input and output.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, (TAPS, 1), bias=False)

    def publish(self, weight: Tensor) -> Tensor:
        """`[O, 3*I]` as published `[O, I, 3, 1]`; shares memory."""
        return weight.unflatten(1, (TAPS, -1)).transpose(1, 2).unsqueeze(-1)

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight.squeeze(-1).transpose(1, 2).flatten(1)


class GLUMBConvTemp(GLUMBConv):
    """GLUMBConv frame by frame, plus a convolution over time of its result (SANA-Video, 3.2).

    The convolution starts at zero, so that a video model begins as the image model it came from.

    Args:
        in_channels, out_channels, expand_ratio: see `GLUMBConv`.
    """

    def __init__(self, in_channels: int, out_channels: int, expand_ratio: float = 4.0) -> None:
        super().__init__(in_channels, out_channels, expand_ratio)
        self.conv_temp = TemporalConv(out_channels)
        nn.init.zeros_(self.conv_temp.weight)

    def new_state(
        self, batch: int, tokens: int, device: torch.device, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """The state before the first frame; `tokens` are those of one frame."""
        channels = self.conv_temp.out_features
        return {"tail": torch.zeros(batch, 1, tokens, channels, device=device, dtype=dtype)}

    def forward(  # type: ignore[override]
        self, x: Tensor, *, state: Tensors | None = None, chunks: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Run over whole clips, or over the next chunks of a stream.

        Args:
            x: `[B, F, Y, X, in_channels]`.
            state: of the frames before; `None` for whole clips.
            chunks: frames of each chunk; `None` takes all for one.

        Returns:
            `[B, F, Y, X, out_channels]`, and the state after these frames where one was given.
        """
        _, frames, height, _, _ = x.shape
        y = super().forward(x.flatten(0, 1)).unflatten(0, (-1, frames)).flatten(2, 3)
        past = None if state is None else state["tail"]
        out = y + self.conv_temp(temporal_windows(y, past, chunks or (frames,)))
        # A copy: a view would keep all of `y` in memory.
        after = None if state is None else {"tail": y[:, -1:].clone()}
        return out.unflatten(2, (height, -1)), after
