"""Latent pictures to tokens and back, and the optional table of positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sana_like.layers.pointwise import PointwiseLinear


def sincos_table(
    dim: int, height: int, width: int, *, base_size: int, interpolation_scale: float
) -> Tensor:
    """Sines and cosines of column and row, columns first (PixArt's 2-D form of DiT's table).

    A position is `index / (size / base_size) / interpolation_scale`, so that every grid spans the
    range of positions of the grid that the model was trained on.

    Args:
        dim: width C, a multiple of 4.
        height, width: of the grid of tokens.
        base_size: side of the training grid.
        interpolation_scale: how far the training grid was itself stretched.

    Returns:
        `[1, height * width, dim]` fp32 on the CPU. Angles are taken in fp64.

    Raises:
        ValueError: `dim` is not a multiple of 4.
    """
    if dim % 4:
        raise ValueError(f"a 2-D table of positions needs a width divisible by 4, got {dim}")
    half = dim // 2
    omega = 10_000.0 ** -(torch.arange(half // 2, dtype=torch.float64, device="cpu") / (half / 2))

    def axis(size: int) -> Tensor:
        # Positions are rounded to fp32 first, as they were when the published models were trained.
        position = torch.arange(size, dtype=torch.float32, device="cpu") / (size / base_size)
        angle = torch.outer((position / interpolation_scale).double(), omega)
        return torch.cat([angle.sin(), angle.cos()], dim=-1)  # [size, C / 2]

    columns = axis(width)[None].expand(height, width, half)
    rows = axis(height)[:, None].expand(height, width, half)
    return torch.cat([columns, rows], dim=-1).reshape(1, height * width, dim).float()


class PatchEmbed(nn.Module):
    """`[B, in_channels, Y*p, X*p]` to tokens `[B, Y*X, C]`, with positions where asked.

    Args:
        in_channels: of the latent.
        dim: width C.
        patch_size: side p of a patch.
        sample_size: side of the latent the model was trained on.
        interpolation_scale: `None` for no positions (SANA's usual case), else see `sincos_table`.
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        patch_size: int,
        sample_size: int,
        interpolation_scale: float | None,
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.base_size = sample_size // patch_size
        self.interpolation_scale = interpolation_scale
        self.proj: nn.Module = (
            PointwiseLinear(in_channels, dim)
            if patch_size == 1
            else nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        )
        # The last table, by grid and device. No buffer: a cast of the model must not round it.
        self._table: tuple[tuple[int, int, torch.device], Tensor] | None = None

    def forward(self, latent: Tensor) -> Tensor:
        """Embed; the result has the dtype of the projection."""
        height, width = (size // self.patch_size for size in latent.shape[-2:])
        if self.patch_size == 1:
            tokens = self.proj(latent.flatten(2).transpose(1, 2))
        else:
            tokens = self.proj(latent).flatten(2).transpose(1, 2)
        if self.interpolation_scale is None:
            return tokens
        return (tokens + self.positions(height, width, tokens)).to(tokens.dtype)

    def positions(self, height: int, width: int, tokens: Tensor) -> Tensor:
        """`[1, height * width, C]` fp32 on the device of `tokens`; computed once per grid."""
        if self.interpolation_scale is None:
            raise ValueError("this model has no table of positions (interpolation_scale is None)")
        key = (height, width, tokens.device)
        if self._table is None or self._table[0] != key:
            table = sincos_table(
                tokens.shape[-1],
                height,
                width,
                base_size=self.base_size,
                interpolation_scale=self.interpolation_scale,
            )
            self._table = (key, table.to(tokens.device))
        return self._table[1]


def patchify(latent: Tensor, patch: tuple[int, int, int]) -> Tensor:
    """`[B, in, F*pt, Y*py, X*px]` to `[B, F*Y*X, in*pt*py*px]`: the windows of a convolution.

    The rows are what `KernelLinear` with this kernel reads; sides must be multiples of the patch.
    """
    cells = latent.unflatten(4, (-1, patch[2])).unflatten(3, (-1, patch[1]))
    cells = cells.unflatten(2, (-1, patch[0]))  # [B, in, F, pt, Y, py, X, px]
    return cells.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)


def unpatchify(tokens: Tensor, height: int, width: int, patch_size: int) -> Tensor:
    """`[B, Y*X, p*p*out]` to `[B, out, Y*p, X*p]`; the channels of a patch vary fastest."""
    return unpatchify_3d(tokens, (1, height, width), (1, patch_size, patch_size)).squeeze(2)


def unpatchify_3d(
    tokens: Tensor, grid: tuple[int, int, int], patch: tuple[int, int, int]
) -> Tensor:
    """`[B, F*Y*X, pt*py*px*out]` to `[B, out, F*pt, Y*py, X*px]`; channels vary fastest."""
    cells = tokens.unflatten(-1, (*patch, -1)).unflatten(1, grid)
    cells = cells.permute(0, 7, 1, 4, 2, 5, 3, 6)  # [B, out, F, pt, Y, py, X, px]
    return cells.flatten(6, 7).flatten(4, 5).flatten(2, 3)
