"""Latents of all pictures of a run, encoded once and kept."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like_train.cache import fingerprint, kept_tensor, tensors_hash
from sana_like_train.config import Augment
from sana_like_train.data.buckets import Size, fit_to_bucket
from sana_like_train.data.records import Record
from sana_like_train.tasks.base import derived_seed

logger = logging.getLogger(__name__)

_ENCODE_PIXELS = 8 * 256 * 256


@dataclass(frozen=True)
class PackedLatents:
    """Scaled latents of N pictures with V variants each (the picture itself is variant 0).

    Clips are held alike, with shapes `(Z, t, y, x)`.

    Attributes:
        flat: fp16, all latents end to end; picture by picture, variant by variant.
        offsets: `[N]`, where each picture's variant 0 starts.
        shapes: `(Z, y, x)` of each picture's latents.
    """

    flat: Tensor
    offsets: list[int]
    shapes: list[tuple[int, ...]]

    def get(self, picture: int, variant: int = 0) -> Tensor:
        """`[Z, y, x]` fp32."""
        shape = self.shapes[picture]
        start = self.offsets[picture] + variant * math.prod(shape)
        return self.flat[start : start + math.prod(shape)].view(shape).float()

    def stack(self, pictures: Sequence[int], variants: Sequence[int] | None = None) -> Tensor:
        """`[B, Z, y, x]` fp32 of pictures of one shape."""
        chosen = [0] * len(pictures) if variants is None else variants
        return torch.stack([self.get(p, v) for p, v in zip(pictures, chosen, strict=True)])


def pack_latents(
    records: Sequence[Record],
    sizes: Sequence[Size],
    autoencoder: AutoencoderDC,
    augment: Augment,
    folder: Path,
    *,
    seed: int,
    half: bool,
    transform: Callable[[Tensor], Tensor] | None = None,
) -> PackedLatents:
    """Latents of the records times `scaling_factor`, from the cache folder where they exist.

    Args:
        records: their pictures are laid on white.
        sizes: (height, width) to which each is brought.
        autoencoder: in eval mode, on the device that encodes.
        augment: how many variants and of what kind.
        folder: of all caches.
        seed: of the variants.
        half: encode under bf16 autocast.
        transform: `[B, 3, Y, X]` to the same, applied to pictures and variants before encoding.
    """
    names = [
        f"{r.key}:{r.picture.path}:{r.picture.offset}:{s}"
        for r, s in zip(records, sizes, strict=True)
    ]
    variants = augment.model_dump_json(exclude={"probability"}) if augment.variants else "plain"
    weights = tensors_hash(autoencoder.state_dict())
    scale = str(autoencoder.config["scaling_factor"])
    kind = transform.__qualname__ if transform else ""
    name = fingerprint(weights, scale, kind, variants, str(seed if augment.variants else 0), *names)
    path = folder / "latents" / f"{name}.safetensors"

    def encoded() -> Tensor:
        return _encode(records, sizes, autoencoder, augment, seed, half, transform)

    flat = kept_tensor(path, encoded, f"{len(records)} pictures")
    ratio = autoencoder.spatial_compression_ratio
    channels = autoencoder.config["latent_channels"]
    shapes: list[tuple[int, ...]] = [(channels, h // ratio, w // ratio) for h, w in sizes]
    lengths = np.array([math.prod(shape) * (1 + augment.variants) for shape in shapes])
    offsets = np.concatenate([[0], lengths.cumsum()])[:-1]
    return PackedLatents(flat, offsets.tolist(), shapes)


def _encode(
    records: Sequence[Record],
    sizes: Sequence[Size],
    autoencoder: AutoencoderDC,
    augment: Augment,
    seed: int,
    half: bool,
    transform: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    device = next(autoencoder.parameters()).device
    scale = autoencoder.config["scaling_factor"]
    done: list[Tensor] = [torch.empty(0)] * len(records)
    by_size: dict[Size, list[int]] = {}
    for index, size in enumerate(sizes):
        by_size.setdefault(size, []).append(index)
    count = 0
    for size, members in by_size.items():
        pictures_at_once = max(1, _ENCODE_PIXELS // (size[0] * size[1] * (1 + augment.variants)))
        for start in range(0, len(members), pictures_at_once):
            chosen = members[start : start + pictures_at_once]
            stacks = [_variants(records[i], size, augment, seed) for i in chosen]
            pictures = torch.cat(stacks).to(device)
            if transform is not None:
                pictures = transform(pictures)
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                latents = autoencoder.encode(pictures).latent * scale
            parts = latents.to("cpu", torch.float16).chunk(len(chosen))
            for i, part in zip(chosen, parts, strict=True):
                done[i] = part
            count += len(chosen)
            if count // 500 != (count - len(chosen)) // 500:
                logger.info("encoded %d of %d pictures", count, len(records))
    return joined_finite(done, [record.key for record in records])


def joined_finite(parts: Sequence[Tensor], keys: Sequence[str]) -> Tensor:
    """Latents end to end.

    Raises:
        ValueError: some are not finite; names the first.
    """
    flat = torch.cat([part.flatten() for part in parts])
    if not bool(torch.isfinite(flat).all()):
        bad = next(k for k, part in zip(keys, parts, strict=True) if not part.isfinite().all())
        raise ValueError(f"the autoencoder gives latents that are not finite, first for {bad!r}")
    return flat


def _variants(record: Record, size: Size, augment: Augment, seed: int) -> Tensor:
    """The picture and its variants, `[1 + V, 3, Y, X]`."""
    picture = fit_to_bucket(record.open_picture(None), size)
    if not augment.variants:
        return picture[None]
    name = int.from_bytes(hashlib.blake2b(record.key.encode(), digest_size=7).digest(), "big")
    rng = np.random.default_rng(derived_seed(seed, "augment", name))
    pictures = [picture]
    for _ in range(augment.variants):
        scale = 1 + rng.uniform(-augment.zoom, augment.zoom)
        shift = rng.uniform(-augment.shift, augment.shift, 2) * 2
        mirror = -1.0 if augment.mirror and rng.random() < 0.5 else 1.0
        pictures.append(moved(picture, scale, (float(shift[0]), float(shift[1])), mirror))
    return torch.stack(pictures)


def moved(picture: Tensor, scale: float, shift: tuple[float, float], mirror: float = 1.0) -> Tensor:
    """A picture `[3, Y, X]` on white, scaled about its middle, shifted, perhaps mirrored.

    Args:
        picture: in [-1, 1].
        scale: above 1 enlarges.
        shift: right and down, in half sides.
        mirror: -1 mirrors left and right.
    """
    right, down = shift
    theta = torch.tensor(
        [[[mirror / scale, 0, -mirror * right / scale], [0, 1 / scale, -down / scale]]]
    )
    grid = F.affine_grid(theta, [1, *picture.shape], align_corners=False)
    # Zero padding is white where white is zero.
    ink = F.grid_sample(picture[None] - 1, grid, mode="bicubic", align_corners=False)
    return (ink[0] + 1).clamp(-1, 1)
