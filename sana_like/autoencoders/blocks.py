"""Blocks of DC-AE (arXiv 2410.10733), channels last from end to end.

Legend: `B` batch, `Y`, `X` grid, `C` channels, `G` attention groups, `D` head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sana_like.autoencoders import slabs
from sana_like.autoencoders.resample import Conv3x3
from sana_like.layers.glu_mbconv import GLUMBConv
from sana_like.layers.linear import Linear, is_plain
from sana_like.layers.norm import channel_norm, norm_end
from sana_like_kernels import linear, linear_attention
from sana_like_kernels.inference import plain_inference
from sana_like_kernels.linear_attention.cpu import linear_attention_inference


def activation(name: str) -> nn.Module:
    """The activation called `name`; raises ValueError for an unknown one."""
    kinds: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU, "relu6": nn.ReLU6}
    if name not in kinds:
        raise ValueError(f"activation {name!r} is unknown; use one of {sorted(kinds)}")
    return kinds[name]()


def write_activation(layer: nn.Module, x: Tensor, out: Tensor) -> None:
    """Write `layer(x)` into `out`, without a tensor between for the usual kinds."""
    if isinstance(layer, nn.SiLU):
        torch.ops.aten.silu.out(x, out=out)
    elif isinstance(layer, nn.ReLU):
        torch.clamp_min(x, 0, out=out)
    else:
        out.copy_(layer(x))


class ResBlock(nn.Module):
    """Two 3x3 convolutions, a norm and a residual."""

    def __init__(self, channels: int, norm_type: str, act_fn: str) -> None:
        super().__init__()
        self.conv1 = Conv3x3(channels, channels)
        self.nonlinearity = activation(act_fn)
        self.conv2 = Conv3x3(channels, channels, bias=False)
        self.norm = channel_norm(norm_type, channels)

    def forward(self, x: Tensor, overwrite: bool = False) -> Tensor:
        """`[B, Y, X, C]` to the same shape.

        Args:
            x: the input.
            overwrite: whether the result may take the place of `x`, which saves the memory of one.
        """
        if self._in_slabs(x):
            x = x.contiguous()
            out = x if overwrite else torch.empty_like(x)
            for plane, result in zip(x, out, strict=True):
                self._slabs(plane, result)
            return out
        hidden = self.nonlinearity(self.conv1(x))
        return norm_end(self.norm, self.conv2(hidden), residual=x)

    def _in_slabs(self, x: Tensor) -> bool:
        parts = (self.conv1, self.conv2, self.nonlinearity, self.norm)
        weights = [p for part in parts for p in part.parameters()]
        return (
            plain_inference(x, *weights)
            and is_plain(*parts)
            and not (self.norm.training and isinstance(self.norm, nn.BatchNorm2d))
        )

    def _slabs(self, plane: Tensor, out: Tensor) -> None:
        done = 0

        def activate(rows: Tensor, result: Tensor) -> None:
            write_activation(self.nonlinearity, rows, result)

        def finish(rows: Tensor, result: Tensor) -> None:
            nonlocal done
            before = plane[done : done + len(rows)]
            norm_end(self.norm, rows[None], residual=before[None], out=result[None])
            done += len(rows)

        first = (self.conv1.weight, self.conv1.bias)
        slabs.two_convs(plane, first, activate, (self.conv2.weight, None), finish, out)


class ResidualGLUMBConv(GLUMBConv):
    """GLUMBConv with a norm after it and a residual around it.

    Args:
        channels: width of input and output.
        norm_type: norm after the projection.
        expand_ratio: hidden width over `channels`.
    """

    def __init__(self, channels: int, norm_type: str = "rms_norm", expand_ratio: float = 4) -> None:
        super().__init__(channels, channels, expand_ratio)
        self.norm = channel_norm(norm_type, channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, C]` to the same shape."""
        return norm_end(self.norm, super().forward(x), residual=x)


class MultiscaleProjection(nn.Module):
    """Depthwise KxK then grouped 1x1 over the concatenated q, k and v."""

    def __init__(self, channels: int, heads: int, kernel_size: int) -> None:
        super().__init__()
        self.proj_in = nn.Conv2d(
            channels, channels, kernel_size, padding=kernel_size // 2, groups=channels, bias=False
        )
        self.proj_out = nn.Conv2d(channels, channels, 1, groups=3 * heads, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, 3C]` to the same shape."""
        return self.proj_out(self.proj_in(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)


class MultiscaleLinearAttention(nn.Module):
    """ReLU linear attention over q, k, v and their multi-scale aggregates (EfficientViT).

    `to_q`, `to_k`, `to_v` are names only: their outputs are concatenated and every group of `3D`
    consecutive channels is one head's q, k and v. Grids of at most `D` cells take the quadratic
    form, which is cheaper there and is what the published weights were made with.

    Args:
        channels: width of input and output.
        head_dim: `D`.
        norm_type: norm after the projection.
        kernel_sizes: one aggregate per kernel size.

    Raises:
        ValueError: `channels` is less than one head.
    """

    def __init__(
        self, channels: int, head_dim: int, norm_type: str, kernel_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        heads = channels // head_dim
        if heads < 1:
            raise ValueError(
                f"attention_head_dim is {head_dim}, wider than a stage of {channels} channels with "
                "EfficientViTBlock"
            )
        inner = heads * head_dim
        self.to_q = Linear(channels, inner, bias=False)
        self.to_k = Linear(channels, inner, bias=False)
        self.to_v = Linear(channels, inner, bias=False)
        self.to_qkv_multiscale = nn.ModuleList(
            MultiscaleProjection(3 * inner, heads, size) for size in kernel_sizes
        )
        self.to_out = Linear(inner * (1 + len(kernel_sizes)), channels, bias=False)
        self.norm_out = channel_norm(norm_type, channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, C]` to the same shape."""
        qkv = self._project(x)  # [B, Y, X, 3C]
        scales = [qkv, *(scale(qkv) for scale in self.to_qkv_multiscale)]
        if plain_inference(*scales) and x.shape[1] * x.shape[2] > self.head_dim:
            out = self._attend_apart(scales)
        else:
            out = self._attend(torch.cat(scales, dim=-1))
        return norm_end(self.norm_out, self.to_out(out), residual=x)

    def _project(self, x: Tensor) -> Tensor:
        """Queries, then keys, then values: `[B, Y, X, C]` to `[B, Y, X, 3C]`."""
        parts = (self.to_q, self.to_k, self.to_v)
        weights = [part.weight for part in parts]
        if is_plain(*parts) and plain_inference(x, *weights):
            return linear(x, torch.cat(weights))
        return torch.cat([part(x) for part in parts], dim=-1)

    def _attend(self, scales: Tensor) -> Tensor:
        """`[B, Y, X, 3D * G]` to `[B, Y, X, D * G]`."""
        grid = scales.shape[1:3]
        query, key, value = self._groups(scales)
        attention = linear_attention if grid.numel() > self.head_dim else quadratic_attention
        return attention(query, key, value).flatten(2).unflatten(1, grid)

    def _attend_apart(self, scales: Sequence[Tensor]) -> Tensor:
        """The same, each scale by itself into its place: heads know nothing of each other."""
        first = scales[0]
        width = first.shape[-1] // 3
        out = first.new_empty(*first.shape[:3], width * len(scales))
        parts = out.flatten(1, 2).split(width, dim=-1)
        for scale, part in zip(scales, parts, strict=True):
            heads = part.unflatten(-1, (-1, self.head_dim))
            query, key, value = self._groups(scale)
            linear_attention_inference(query, key, value, eps=1e-15, out=heads)
        return out

    def _groups(self, scales: Tensor) -> tuple[Tensor, ...]:
        """Query, key and value, each `[B, N, G, D]`."""
        groups = scales.flatten(1, 2).unflatten(-1, (-1, 3 * self.head_dim))
        return groups.chunk(3, dim=-1)


def quadratic_attention(query: Tensor, key: Tensor, value: Tensor, eps: float = 1e-15) -> Tensor:
    """The same attention with explicit scores; all sums in fp32, where half precision overflows.

    Args:
        query, key, value: `[B, N, G, D]`.
        eps: added to the normaliser.

    Returns:
        `[B, N, G, D]` in the dtype of `value`.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    # Autocast would take the fp32 sums back to half precision.
    with torch.autocast(query.device.type, enabled=False):
        scores = torch.einsum("bngd,bmgd->bgnm", query.to(wide).relu(), key.to(wide).relu())
        scores = scores / (scores.sum(-1, keepdim=True) + eps)
        return torch.einsum("bgnm,bmgd->bngd", scores, value.to(wide)).to(value.dtype)


class EfficientViTBlock(nn.Module):
    """Multi-scale linear attention, then GLUMBConv."""

    def __init__(
        self, channels: int, head_dim: int, norm_type: str, kernel_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.attn = MultiscaleLinearAttention(channels, head_dim, norm_type, kernel_sizes)
        self.conv_out = ResidualGLUMBConv(channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, C]` to the same shape."""
        return self.conv_out(self.attn(x))


def make_block(
    kind: str,
    channels: int,
    *,
    head_dim: int,
    norm_type: str,
    act_fn: str,
    kernel_sizes: Sequence[int],
    expand_ratio: float,
) -> nn.Module:
    """The block called `kind`: `ResBlock`, `EfficientViTBlock` or `GLUMBConv`.

    Raises:
        ValueError: another `kind`.
    """
    if kind == "ResBlock":
        return ResBlock(channels, norm_type, act_fn)
    if kind == "EfficientViTBlock":
        return EfficientViTBlock(channels, head_dim, norm_type, kernel_sizes)
    if kind == "GLUMBConv":
        return ResidualGLUMBConv(channels, norm_type, expand_ratio)
    raise ValueError(
        f"block type {kind!r} is unknown; use ResBlock, EfficientViTBlock or GLUMBConv"
    )
