"""Wan 2.1's autoencoder (arXiv 2503.20314, section 4.1), diffusers' class, as a codec.

It is causal, and its class works latent frame by latent frame over a list of the last frames that
each convolution saw. Here that list belongs to the caller, so that a clip can go on later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sana_like.autoencoders.codec import VideoCodec
from sana_like.transformers.offload import weights_present


@dataclass(frozen=True)
class WanCache:
    """What each causal convolution of the decoder keeps: frames, a mark, or nothing yet.

    Attributes:
        entries: `[B, C, k, Y, X]`, or the class's own mark of a first frame, or `None`.
    """

    entries: tuple[Tensor | str | None, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; the same from the third latent frame on."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {f"{i:04d}": e for i, e in enumerate(self.entries) if isinstance(e, Tensor)}

    def settings(self) -> dict[str, Any]:
        """What is not a tensor, as JSON values."""
        return {"entries": [e if isinstance(e, str) else None for e in self.entries]}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Inverse of `tensors` and `settings`.

        Raises:
            ValueError: they do not belong together.
        """
        marks = settings.get("entries")
        if not isinstance(marks, list) or any(not isinstance(m, str | None) for m in marks):
            raise ValueError(f"these are not the settings of a cache: {dict(settings)}")
        names = [f"{index:04d}" for index in range(len(marks))]
        if not tensors.keys() <= set(names):
            raise ValueError(f"these are not the tensors of a cache: {sorted(tensors)}")
        return cls(tuple(tensors.get(n, mark) for n, mark in zip(names, marks, strict=True)))


class WanCodec(VideoCodec):
    """Latents are centred and scaled per channel by the numbers of the autoencoder's config."""

    cache_type: ClassVar[Any] = WanCache

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = model.config
        self.latent_channels = config.z_dim
        self.spatial_ratio = config.scale_factor_spatial
        self.temporal_ratio = config.scale_factor_temporal
        if config.patch_size is not None:
            self.why_no_stream = "its pictures are patched (Wan 2.2), which SANA does not use"

    def _normalise(self, latents: Tensor) -> Tensor:
        mean, std = self._statistics(latents)
        return (latents - mean) / std

    def _restore(self, latents: Tensor) -> Tensor:
        mean, std = self._statistics(latents)
        return latents * std + mean

    def _statistics(self, latents: Tensor) -> list[Tensor]:
        config = self.model.config
        return [
            latents.new_tensor(values).view(1, -1, 1, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        ]

    def _encode(self, frames: Tensor) -> Tensor:
        return self.model.encode(frames, return_dict=False)[0].mode()

    def _decode(self, latents: Tensor) -> Tensor:
        return self.model.decode(latents, return_dict=False)[0]

    def _decode_chunk(self, latents: Tensor, cache: WanCache | None) -> tuple[Tensor, WanCache]:
        model = self.model
        if cache is None:
            convolution = type(model.post_quant_conv)
            count = sum(isinstance(module, convolution) for module in model.decoder.modules())
            cache = WanCache((None,) * count)
        # The decoder writes into the list, whose tensors it replaces and never changes.
        entries, first = list(cache.entries), all(entry is None for entry in cache.entries)
        parts = []
        with weights_present(model):
            x = model.post_quant_conv(latents)
            for index in range(x.shape[2]):
                starts = {"first_chunk": True} if first and index == 0 else {}
                frame = x[:, :, index : index + 1]
                parts.append(model.decoder(frame, feat_cache=entries, feat_idx=[0], **starts))
        return torch.cat(parts, dim=2).clamp(-1.0, 1.0), WanCache(tuple(entries))
