"""One way to clips and back for every autoencoder that a video transformer may have.

A codec speaks of normalised latents, those that the transformer works on: it scales and centres
them as the autoencoder's publisher did, whatever the autoencoder's own class leaves to its caller.

Legend: `B` batch, `T` frames, `t` latent frames, `Y`, `X` picture, `y`, `x` latent grid, `Z` latent
channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from sana_like.autoencoders.causal import CausalCache


class VideoCodec(ABC):
    """An autoencoder as pipelines and training see it; made by `video_codec`.

    Args:
        model: the autoencoder.

    Attributes:
        model: the autoencoder.
        latent_channels: Z.
        spatial_ratio, temporal_ratio: pixels and frames of a latent pixel. The first frame is a
            latent frame of its own: `1 + r*k` frames are `1 + k` latent frames.
        cache_type: class of the caches of `decode_chunk`, for `sana_like.state.load_parts`.
        why_no_stream: why this autoencoder cannot decode in chunks; `None` where it can.
    """

    cache_type: ClassVar[Any] = CausalCache
    latent_channels: int
    spatial_ratio: int
    temporal_ratio: int
    why_no_stream: str | None = None

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def streams(self) -> bool:
        """Whether `decode_chunk` works: no frame may depend on later latent frames."""
        return self.why_no_stream is None

    def enable_tiling(self) -> None:
        """Encode and decode large clips in tiles, as the autoencoder's own class does it.

        Ours are exact. diffusers' blend overlapping tiles, which therefore differ a little from the
        whole. `decode_chunk` is not tiled.
        """
        self.model.enable_tiling()

    def disable_tiling(self) -> None:
        """Work on whole pictures again."""
        self.model.disable_tiling()

    def latent_frames(self, frames: int) -> int:
        """Latent frames of `frames` frames, the last group filled up."""
        return 1 + -(-(frames - 1) // self.temporal_ratio)

    def pixel_frames(self, latent_frames: int, *, start: bool = True) -> int:
        """Frames that a chunk of latent frames is decoded to, at the start of a clip or later."""
        return latent_frames * self.temporal_ratio - (self.temporal_ratio - 1 if start else 0)

    def encode_video(self, frames: Tensor) -> Tensor:
        """Encode a clip; deterministic.

        Args:
            frames: `[B, 3, T, Y, X]` in [-1, 1]; a picture has T = 1. Frames are repeated to the
                next legal count; the sides must be multiples of `spatial_ratio`.

        Returns:
            Normalised latents `[B, Z, t, y, x]` in fp32.

        Raises:
            ValueError: another layout.
        """
        if frames.ndim != 5 or frames.shape[1] != 3 or 0 in frames.shape:
            raise ValueError(
                "encode_video needs clips [B, 3, frames, height, width] with no empty side, got "
                f"{list(frames.shape)}"
            )
        if any(side % self.spatial_ratio for side in frames.shape[3:]):
            raise ValueError(
                f"frames of {frames.shape[3]}x{frames.shape[4]} cannot be encoded: give sides that "
                f"are multiples of {self.spatial_ratio}"
            )
        missing = self.pixel_frames(self.latent_frames(frames.shape[2])) - frames.shape[2]
        if missing:
            frames = torch.cat([frames, *[frames[:, :, -1:]] * missing], dim=2)
        frames = frames.to(self.model.device, self.model.dtype)
        return self._normalise(self._encode(frames).float())

    def decode_video(self, latents: Tensor) -> Tensor:
        """Decode a whole clip.

        Args:
            latents: normalised, `[B, Z, t, y, x]`.

        Returns:
            `[B, 3, pixel_frames(t), Y, X]`, about [-1, 1], in the autoencoder's dtype.

        Raises:
            ValueError: another layout.
        """
        return self._decode(self._ready(latents))

    def decode_chunk(self, latents: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """Decode the next latent frames of a clip; chunk after chunk is the whole clip.

        Args:
            latents: normalised, `[B, Z, t, y, x]`, any number of latent frames.
            cache: what the chunk before gave; `None` at the start. It is not changed.

        Returns:
            `[B, 3, pixel_frames(t, start=cache is None), Y, X]`, and the cache for the next chunk.
            Its size does not depend on how much has passed.

        Raises:
            ValueError: another layout, or an autoencoder that looks ahead.
        """
        if self.why_no_stream is not None:
            raise ValueError(
                f"{type(self.model).__name__} cannot decode in chunks: {self.why_no_stream}; use "
                "decode_video"
            )
        return self._decode_chunk(self._ready(latents), cache)

    def decode_stream(self, chunks: Iterable[Tensor], cache: Any = None) -> Iterator[Tensor]:
        """Frames of each chunk of latents as it comes; see `decode_chunk`."""
        for latents in chunks:
            frames, cache = self.decode_chunk(latents, cache)
            yield frames

    def _ready(self, latents: Tensor) -> Tensor:
        if latents.ndim != 5 or latents.shape[1] != self.latent_channels or 0 in latents.shape:
            raise ValueError(
                f"decoding needs latents [B, {self.latent_channels}, frames, height, width] with "
                f"no empty side, got {list(latents.shape)}"
            )
        return self._restore(latents.float()).to(self.model.device, self.model.dtype)

    @abstractmethod
    def _normalise(self, latents: Tensor) -> Tensor:
        """Raw latents, fp32, to those of the transformer."""

    @abstractmethod
    def _restore(self, latents: Tensor) -> Tensor:
        """Inverse of `_normalise`."""

    @abstractmethod
    def _encode(self, frames: Tensor) -> Tensor:
        """Legal clips to raw latents."""

    @abstractmethod
    def _decode(self, latents: Tensor) -> Tensor:
        """Raw latents to clips."""

    @abstractmethod
    def _decode_chunk(self, latents: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """The next raw latents to frames."""


class ScaledCodec(VideoCodec):
    """DC-AE and DC-AE-V: latents times one number. DC-AE takes each frame for a picture."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.latent_channels = model.config.latent_channels
        self.spatial_ratio = model.spatial_compression_ratio
        self.temporal_ratio = model.temporal_compression_ratio
        self.frame_by_frame = not hasattr(model, "decode_chunk")

    def _normalise(self, latents: Tensor) -> Tensor:
        return latents * self.model.config.scaling_factor

    def _restore(self, latents: Tensor) -> Tensor:
        return latents / self.model.config.scaling_factor

    def _encode(self, frames: Tensor) -> Tensor:
        if not self.frame_by_frame:
            return self.model.encode(frames, return_dict=False)[0]
        return _each(frames, lambda picture: self.model.encode(picture, return_dict=False)[0])

    def _decode(self, latents: Tensor) -> Tensor:
        if not self.frame_by_frame:
            return self.model.decode(latents, return_dict=False)[0]
        return _each(latents, lambda latent: self.model.decode(latent, return_dict=False)[0])

    def _decode_chunk(self, latents: Tensor, cache: Any) -> tuple[Tensor, Any]:
        if not self.frame_by_frame:
            return self.model.decode_chunk(latents, cache)
        return self._decode(latents), CausalCache(())


def _each(clip: Tensor, function: Any) -> Tensor:
    """A function of pictures over the frames of a clip `[B, C, T, Y, X]`."""
    return torch.stack([function(frame) for frame in clip.unbind(2)], dim=2)


def video_codec(model: Any) -> VideoCodec:
    """The codec for an autoencoder.

    Args:
        model: our `AutoencoderDC` or `AutoencoderDCVideo`, diffusers' `AutoencoderKLWan` or
            `AutoencoderKLLTX2Video`.

    Raises:
        ValueError: another class.
    """
    from sana_like.autoencoders.codec_ltx2 import LTX2Codec
    from sana_like.autoencoders.codec_wan import WanCodec

    kinds: dict[str, type[VideoCodec]] = {
        "AutoencoderDC": ScaledCodec,
        "AutoencoderDCVideo": ScaledCodec,
        "AutoencoderKLWan": WanCodec,
        "AutoencoderKLLTX2Video": LTX2Codec,
    }
    for kind in type(model).__mro__:
        if kind.__name__ in kinds:
            return kinds[kind.__name__](model)
    raise ValueError(
        f"{type(model).__name__} is no autoencoder of a SANA video model; legal: {', '.join(kinds)}"
    )
