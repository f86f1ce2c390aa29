"""Previews: a linear map from latents to small pictures, fitted once per autoencoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from sana_like_pipelines.pixels import to_pil


@dataclass(frozen=True)
class LatentRGB:
    """Each cell of a latent becomes `patch * patch` pixels by one matrix product.

    Latents are those the transformer sees (times `scaling_factor`).
    """

    patch: int
    weight: Tensor
    """`[3 * patch * patch, Z]` fp32."""
    bias: Tensor
    """`[3 * patch * patch]` fp32."""

    def __call__(self, latents: Tensor) -> Tensor:
        """`[B, Z, y, x]` to pictures `[B, 3, y * patch, x * patch]` in [0, 1], fp32 on the CPU.

        Raises:
            ValueError: the latents have another number of channels than the map.
        """
        if latents.shape[1] != self.weight.shape[1]:
            raise ValueError(
                f"this latent_rgb map is for {self.weight.shape[1]} channels, "
                f"the latents have {latents.shape[1]}"
            )
        cells = latents.detach().to("cpu", torch.float32).movedim(1, -1)  # [B, y, x, Z]
        planes = F.linear(cells, self.weight, self.bias).movedim(-1, 1)  # [B, 3*p*p, y, x]
        return (F.pixel_shuffle(planes, self.patch) / 2 + 0.5).clamp(0, 1)

    def pictures(self, latents: Tensor) -> list[Image.Image]:
        """`[B, Z, y, x]` to small pictures."""
        return to_pil(self(latents))

    def to_dict(self) -> dict[str, Any]:
        """Plain values rounded to four digits, for JSON."""
        return {
            "patch": self.patch,
            "weight": [[round(value, 4) for value in row] for row in self.weight.tolist()],
            "bias": [round(value, 4) for value in self.bias.tolist()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LatentRGB:
        """Inverse of `to_dict`.

        Raises:
            ValueError: keys or shapes are not those of a map.
        """
        try:
            patch = int(values["patch"])
            weight = torch.tensor(values["weight"], dtype=torch.float32)
            bias = torch.tensor(values["bias"], dtype=torch.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"latent_rgb needs patch, weight and bias: {error}") from error
        rows = 3 * patch * patch
        if weight.ndim != 2 or weight.shape[0] != rows or bias.shape != (rows,):
            raise ValueError(
                f"latent_rgb with patch {patch} needs weight [{rows}, Z] and bias [{rows}], "
                f"got {list(weight.shape)} and {list(bias.shape)}"
            )
        return cls(patch, weight, bias)


@torch.no_grad()
def fit_latent_rgb(vae: Any, pictures: Tensor | Iterable[Tensor], *, patch: int = 4) -> LatentRGB:
    """Fit the map by least squares.

    Args:
        vae: an `AutoencoderDC`, or an `AutoencoderDCVideo`, to which pictures are clips of one
            frame.
        pictures: `[B, 3, Y, X]` in [-1, 1], or several such batches of any sizes.
        patch: pixels per side that a cell of the latent becomes; must divide the compression.

    Raises:
        ValueError: `patch` does not divide the compression, or there are too few cells to fit.
    """
    ratio = vae.spatial_compression_ratio
    if patch < 1 or ratio % patch:
        raise ValueError(f"patch={patch} must divide the autoencoder's compression of {ratio}")
    unknowns = vae.config.latent_channels + 1
    moments = torch.zeros(unknowns, unknowns, dtype=torch.float64)
    products = torch.zeros(unknowns, 3 * patch * patch, dtype=torch.float64)
    cells = 0
    for batch in [pictures] if isinstance(pictures, Tensor) else pictures:
        latents = _encode(vae, batch.to(vae.device, vae.dtype)) * vae.config.scaling_factor
        height, width = latents.shape[-2:]
        target = F.adaptive_avg_pool2d(batch.float(), (height * patch, width * patch))
        x = latents.to("cpu", torch.float64).movedim(1, -1).flatten(0, 2)  # [cells, Z]
        y = F.pixel_unshuffle(target.to("cpu", torch.float64), patch).movedim(1, -1).flatten(0, 2)
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
        moments += x.T @ x
        products += x.T @ y
        cells += len(x)
    if cells < unknowns:
        raise ValueError(f"{cells} latent cells cannot fix {unknowns} unknowns: give more pictures")
    solution = torch.linalg.lstsq(moments, products, driver="gelsd").solution.float()  # [Z+1, 3pp]
    return LatentRGB(patch, solution[:-1].T.contiguous(), solution[-1].contiguous())


def _encode(vae: Any, pictures: Tensor) -> Tensor:
    """Latents `[B, Z, y, x]` of pictures."""
    if hasattr(vae, "encode_chunk"):
        return vae.encode(pictures.unsqueeze(2)).latent.squeeze(2)
    return vae.encode(pictures).latent
