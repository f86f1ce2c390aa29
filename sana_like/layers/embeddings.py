"""Embeddings of the time, of the guidance scale and of the caption."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sana_like.layers.linear import Linear

FREQUENCIES = 256
MAX_PERIOD = 10_000


def sinusoid(values: Tensor, width: int = FREQUENCIES) -> Tensor:
    """Cosines, then sines, of `values` at `width / 2` frequencies from 1 down to 1/10000.

    Args:
        values: `[...]`, any dtype; fp64 is kept, everything else is computed in fp32, so that a
            fractional time keeps its fraction whatever the model's dtype.
        width: even number of channels.

    Returns:
        `[..., width]` in fp32 or fp64.
    """
    wide = torch.promote_types(values.dtype, torch.float32)
    half = width // 2
    steps = torch.arange(half, dtype=wide, device=values.device)
    frequencies = torch.exp(steps * (-math.log(MAX_PERIOD) / half))
    angles = values.to(wide)[..., None] * frequencies  # [..., width / 2]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def per_row(value: Tensor | float, batch: int, name: str, device: torch.device) -> Tensor:
    """A number for each row of the batch.

    Args:
        value: a number, or a tensor that is 0-d, of length 1 or of length `batch`.
        batch: number of rows B.
        name: what the value is, for the error.
        device: where the result is wanted.

    Returns:
        `[B]`.

    Raises:
        ValueError: any other shape.
    """
    tensor = torch.as_tensor(value, device=device)
    if tensor.ndim > 1 or tensor.numel() not in (1, batch):
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}; give one number, or one for each of the "
            f"{batch} rows"
        )
    return tensor.reshape(-1).expand(batch)


def per_frame(
    value: Tensor | float, batch: int, frames: int, name: str, device: torch.device
) -> Tensor:
    """A number for each row of the batch, or for each frame of each row.

    Args:
        value: `[B, F]`, or whatever `per_row` takes.
        batch, frames: B and F.
        name, device: see `per_row`.

    Returns:
        `[B, F]`, or `[B, 1]` where all frames of a row have the same.

    Raises:
        ValueError: any other shape.
    """
    tensor = torch.as_tensor(value, device=device)
    if tensor.ndim < 2:
        return per_row(tensor, batch, name, device).unsqueeze(1)
    if tuple(tensor.shape) != (batch, frames):
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}; give one number, one for each of the {batch} "
            f"rows, or one for each of their {frames} latent frames ({batch}, {frames}); never one "
            "for each token"
        )
    return tensor


class ScalarEmbedding(nn.Module):
    """A number as C channels: sinusoid, linear, SiLU, linear.

    Args:
        dim: width C.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear_1 = Linear(FREQUENCIES, dim)
        self.linear_2 = Linear(dim, dim)

    def forward(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """`[...]` to `[..., C]`; the sinusoid is cast to `dtype` before the first linear."""
        return self.linear_2(F.silu(self.linear_1(sinusoid(values).to(dtype))))


class TimeEmbedding(nn.Module):
    """Time, and for distilled models the guidance scale, as AdaLN-single modulation.

    AdaLN-single is PixArt's (arXiv 2310.00426, section 2.3): one projection serves all blocks,
    each of which adds its own table. The embedded guidance is SANA-Sprint's (arXiv 2503.09641).

    Args:
        dim: width C.
        guidance: whether the guidance scale is embedded and added to the time.
    """

    def __init__(self, dim: int, guidance: bool = False) -> None:
        super().__init__()
        # The published files name the time's part differently in the two kinds of model.
        if guidance:
            self.timestep_embedder = ScalarEmbedding(dim)
            self.guidance_embedder = ScalarEmbedding(dim)
        else:
            self.emb = nn.ModuleDict({"timestep_embedder": ScalarEmbedding(dim)})
        self.guidance = guidance
        self.linear = Linear(dim, 6 * dim)

    def forward(
        self, timestep: Tensor, guidance: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Embed.

        Args:
            timestep: `[B]`, or `[B, F]` for one of each frame.
            guidance: broadcastable to `timestep` where the model embeds it, else `None`.
            dtype: of the model's activations.

        Returns:
            `[B, 6, C]`, what the blocks add to their tables, and `[B, C]`, what the last norm adds
            to its own; `[B, F, 6, C]` and `[B, F, C]` for times of frames.

        Raises:
            ValueError: guidance is missing or was given to a model that does not read it.
        """
        if self.guidance != (guidance is not None):
            raise ValueError(
                "this model embeds the guidance scale (guidance_embeds=True): pass guidance"
                if self.guidance
                else "guidance was given to a model that does not embed it "
                "(guidance_embeds=False): pass guidance=None"
            )
        if guidance is None:
            embedded = self.emb["timestep_embedder"](timestep, dtype)
        else:
            embedded = self.timestep_embedder(timestep, dtype)
            embedded = embedded + self.guidance_embedder(guidance, dtype)
        return self.linear(F.silu(embedded)).unflatten(-1, (6, -1)), embedded


class CaptionProjection(nn.Module):
    """Text features to the width of the tokens: linear, GELU (tanh form), linear.

    Args:
        text_dim: width of the text encoder.
        dim: width C.
    """

    def __init__(self, text_dim: int, dim: int) -> None:
        super().__init__()
        self.linear_1 = Linear(text_dim, dim)
        self.linear_2 = Linear(dim, dim)

    def forward(self, text: Tensor) -> Tensor:
        """`[B, L, text_dim]` to `[B, L, C]`."""
        return self.linear_2(F.gelu(self.linear_1(text), approximate="tanh"))
