"""DC-AE-V: the deep-compression autoencoder of clips (SANA-Video, arXiv 2509.24695, section 3.1).

The image autoencoder with causal layers over time between its deep stages. What it was trained on
as an autoencoder of pictures is kept: a new one encodes and decodes every frame as that did.

Legend: `B` batch, `T` frames, `t` latent frames, `Y`, `X` picture, `y`, `x` latent grid, `C`
channels, `Z` latent channels.
"""
# ruff: noqa: ARG002 - `register_to_config` reads the arguments of `__init__`

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, EncoderOutput
from diffusers.utils.accelerate_utils import apply_forward_hook
from torch import Tensor, nn

from sana_like.autoencoders.base import DeepCompressionAutoencoder, check_planes
from sana_like.autoencoders.causal import CausalCache, CausalPass
from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.autoencoders.video_coders import VideoDecoder, VideoEncoder
from sana_like.weights.errors import WeightsError
from sana_like.weights.hub import embedded_names, resolve_folder
from sana_like.weights.model import published_state_dict
from sana_like.weights.strict import find_weights

CLIP_AXES = "frames, height, width"


class AutoencoderDCVideo(DeepCompressionAutoencoder):
    """A causal autoencoder that shrinks clips in space like DC-AE and in time, usually 4 times.

    The first frame is a latent frame of its own, and every further group of
    `temporal_compression_ratio` frames another: `1 + 4k` frames are `1 + k` latent frames. No frame
    depends on a later one, so clips of any length are encoded and decoded in chunks, whose result
    is that of the whole. A picture is a clip of one frame.

    Args:
        encoder_temporal_layers, decoder_temporal_layers: causal blocks per stage.
        temporal_stages: stages after which the encoder halves the number of frames.
        image_weights, image_sha256: an embedded autoencoder of pictures, and its checksum, whose
            tensors this one's files leave out; see `share_image_weights`.
        in_channels, latent_channels, attention_head_dim, encoder_block_types,
        decoder_block_types, encoder_block_out_channels, decoder_block_out_channels,
        encoder_layers_per_block, decoder_layers_per_block, encoder_qkv_multiscales,
        decoder_qkv_multiscales, upsample_block_type, downsample_block_type, decoder_norm_types,
        decoder_act_fns, encoder_out_shortcut, decoder_in_shortcut, decoder_conv_act_fn,
        scaling_factor, norm_type, expand_ratio, resample_empty_stages: as in `AutoencoderDC`.

    Raises:
        ValueError: see `AutoencoderDC`; or layers over time in a stage that has none.
    """

    _extension_keys: ClassVar[dict[str, Any]] = {"image_weights": None, "image_sha256": None}

    @register_to_config
    def __init__(
        self,
        in_channels: int = 3,
        latent_channels: int = 32,
        attention_head_dim: int = 32,
        encoder_block_types: str | tuple[str, ...] = "ResBlock",
        decoder_block_types: str | tuple[str, ...] = "ResBlock",
        encoder_block_out_channels: tuple[int, ...] = (128, 256, 512, 512, 1024, 1024),
        decoder_block_out_channels: tuple[int, ...] = (128, 256, 512, 512, 1024, 1024),
        encoder_layers_per_block: tuple[int, ...] = (2, 2, 2, 3, 3, 3),
        decoder_layers_per_block: tuple[int, ...] = (3, 3, 3, 3, 3, 3),
        encoder_qkv_multiscales: tuple[tuple[int, ...], ...] = ((), (), (), (5,), (5,), (5,)),
        decoder_qkv_multiscales: tuple[tuple[int, ...], ...] = ((), (), (), (5,), (5,), (5,)),
        upsample_block_type: str = "pixel_shuffle",
        downsample_block_type: str = "pixel_unshuffle",
        decoder_norm_types: str | tuple[str, ...] = "rms_norm",
        decoder_act_fns: str | tuple[str, ...] = "silu",
        encoder_out_shortcut: bool = True,
        decoder_in_shortcut: bool = True,
        decoder_conv_act_fn: str = "relu",
        scaling_factor: float = 1.0,
        norm_type: str = "rms_norm",
        expand_ratio: float = 4.0,
        resample_empty_stages: bool = False,
        encoder_temporal_layers: tuple[int, ...] = (0, 0, 0, 1, 1, 1),
        decoder_temporal_layers: tuple[int, ...] = (0, 0, 0, 1, 1, 1),
        temporal_stages: tuple[int, ...] = (3, 4),
        image_weights: str | None = None,
        image_sha256: str | None = None,
    ) -> None:
        super().__init__()
        stages = len(encoder_block_out_channels)
        for name, layers in (
            ("encoder_temporal_layers", encoder_temporal_layers),
            ("decoder_temporal_layers", decoder_temporal_layers),
        ):
            if len(layers) != stages:
                raise ValueError(f"{name} has {len(layers)} entries for {stages} stages")
        self._build(
            partial(
                VideoEncoder,
                temporal_layers=encoder_temporal_layers,
                temporal_stages=temporal_stages,
            ),
            partial(
                VideoDecoder,
                temporal_layers=decoder_temporal_layers,
                temporal_stages=temporal_stages,
            ),
        )
        first = max(self.encoder.split, self.decoder.split)
        both = zip(encoder_temporal_layers, decoder_temporal_layers, strict=True)
        used = {stage for stage, layers in enumerate(both) if any(layers)}
        wrong = {s for s in temporal_stages if not first <= s < stages - 1}
        wrong |= {s for s in used if s < first}
        if wrong or len(set(temporal_stages)) != len(temporal_stages):
            raise ValueError(
                f"temporal layers in stages {sorted(used)} with temporal_stages {temporal_stages} "
                f"cannot be made: layers may be in stages {first} to {stages - 1}, and time may be "
                f"halved once after each of {first} to {stages - 2}"
            )
        self.temporal_compression_ratio = 2 ** len(temporal_stages)

    @classmethod
    def from_image(cls, image: AutoencoderDC, **changes: Any) -> Self:
        """An autoencoder of clips with the weights of one of pictures.

        It treats every frame as a picture, and neighbouring frames of the same latent frame by
        their mean, until it is trained.

        Args:
            image: the trained autoencoder of pictures; its weights are copied.
            changes: config keys of this class, such as `temporal_stages`.
        """
        config = {key: value for key, value in image.config.items() if not key.startswith("_")}
        model = cls(**config | changes)
        weights = model.state_dict()
        weights.update(image.state_dict())
        model.load_state_dict(weights)
        # Not `ModelMixin.to`, which warns of every change of dtype.
        nn.Module.to(model, device=image.device, dtype=image.dtype)
        return model

    def share_image_weights(self, name: str | None) -> None:
        """Leave tensors that equal those of an embedded autoencoder out of the files of a save.

        Args:
            name: of an embedded `AutoencoderDC`; `None` writes all tensors.

        Raises:
            WeightsError: no embedded autoencoder has this name.
        """
        checksum = None if name is None else _checksum(name)
        self.register_to_config(image_weights=name, image_sha256=checksum)

    @classmethod
    def shared_tensors(cls, config: Mapping[str, Any]) -> dict[str, Tensor]:
        """See `StrictModel`: the tensors of `image_weights`.

        Raises:
            WeightsError: it is not embedded, or not the one that this model was made with.
        """
        name, wanted = config.get("image_weights"), config.get("image_sha256")
        if name is None:
            return {}
        found = _checksum(name)
        if found != wanted:
            raise WeightsError(
                f"{cls.__name__}: the weights left out are those of an {name!r} with SHA-256 "
                f"{wanted}, the embedded one has {found}; use the release that both came with."
            )
        return published_state_dict(AutoencoderDC.from_pretrained(name))

    def latent_frames(self, frames: int) -> int:
        """Latent frames of a clip of `frames` frames, the last group filled up."""
        return 1 + -(-(frames - 1) // self.temporal_compression_ratio)

    def pixel_frames(self, latent_frames: int) -> int:
        """Frames that `latent_frames` latent frames are decoded to."""
        return 1 + (latent_frames - 1) * self.temporal_compression_ratio

    @apply_forward_hook
    def encode(self, x: Tensor, return_dict: bool = True) -> EncoderOutput | tuple[Tensor]:
        """Encode clips; deterministic.

        Args:
            x: `[B, 3, T, Y, X]` in [-1, 1], any size from 1x1x1. The last frame is repeated until
                the last group is full, last rows and columns likewise.
            return_dict: give an `EncoderOutput` with `.latent` instead of a tuple.

        Returns:
            Latents `[B, Z, t, y, x]`, not yet times `scaling_factor`.

        Raises:
            ValueError: `x` has not this layout.
        """
        check_planes(x, self.config.in_channels, "encode", "clips", CLIP_AXES)
        missing = self.pixel_frames(self.latent_frames(x.shape[2])) - x.shape[2]
        if missing:
            x = F.pad(x, (0, 0, 0, 0, 0, missing), mode="replicate")
        latent = self._encode(x, CausalPass(None))
        return EncoderOutput(latent=latent) if return_dict else (latent,)

    @apply_forward_hook
    def encode_chunk(
        self, x: Tensor, cache: CausalCache | None = None
    ) -> tuple[Tensor, CausalCache]:
        """Encode the next frames of a clip.

        Args:
            x: `[B, 3, T, Y, X]`: `1 + 4k` frames at the start, `4k` later (with time factor 4).
            cache: what the chunk before gave; `None` at the start.

        Returns:
            `[B, Z, t, y, x]`, and the cache for the next chunk, whose size does not change.

        Raises:
            ValueError: another number of frames, or a cache of another size.
        """
        check_planes(x, self.config.in_channels, "encode_chunk", "clips", CLIP_AXES)
        factor, extra = self.temporal_compression_ratio, int(cache is None)
        if (x.shape[2] - extra) % factor:
            raise ValueError(
                f"a chunk of {x.shape[2]} frames cannot be encoded: give 1 + {factor}k frames at "
                f"the start of a clip and {factor}k later"
            )
        run = CausalPass(cache)
        return self._encode(x, run), run.cache()

    @apply_forward_hook
    def decode(self, z: Tensor, return_dict: bool = True) -> DecoderOutput | tuple[Tensor]:
        """Decode latents.

        Args:
            z: `[B, Z, t, y, x]`, already divided by `scaling_factor`.
            return_dict: give a `DecoderOutput` with `.sample` instead of a tuple.

        Returns:
            Clips `[B, 3, 1 + (t - 1) * 4, Y, X]` (with time factor 4), about [-1, 1], not clamped.

        Raises:
            ValueError: `z` has not this layout.
        """
        check_planes(z, self.config.latent_channels, "decode", "latents", CLIP_AXES)
        sample = self._decode(z, CausalPass(None))
        return DecoderOutput(sample=sample) if return_dict else (sample,)

    @apply_forward_hook
    def decode_chunk(
        self, z: Tensor, cache: CausalCache | None = None
    ) -> tuple[Tensor, CausalCache]:
        """Decode the next latent frames of a clip.

        Args:
            z: `[B, Z, t, y, x]`, any number of latent frames.
            cache: what the chunk before gave; `None` at the start.

        Returns:
            `[B, 3, T, Y, X]`, `1 + 4(t - 1)` frames at the start and `4t` later (with time factor
            4), and the cache for the next chunk, whose size does not change.

        Raises:
            ValueError: `z` has not this layout, or a cache of another size.
        """
        check_planes(z, self.config.latent_channels, "decode_chunk", "latents", CLIP_AXES)
        run = CausalPass(cache)
        return self._decode(z, run), run.cache()

    def forward(self, sample: Tensor, return_dict: bool = True) -> DecoderOutput | tuple[Tensor]:
        """Encode and decode clips `[B, 3, T, Y, X]`; the result has their size."""
        latent = self.encode(sample, return_dict=False)[0]
        decoded = self.decode(latent, return_dict=False)[0]
        decoded = decoded[..., : sample.shape[2], : sample.shape[3], : sample.shape[4]]
        return DecoderOutput(sample=decoded) if return_dict else (decoded,)

    def _encode(self, x: Tensor, run: CausalPass) -> Tensor:
        ratio = self.spatial_compression_ratio
        padding = (0, -x.shape[-1] % ratio, 0, -x.shape[-2] % ratio, 0, 0)
        if any(padding):
            x = F.pad(x, padding, mode="replicate")
        clip = x.permute(0, 2, 3, 4, 1).contiguous()  # [B, T, Y, X, C]
        tiled = self._tiled(clip.shape[2], clip.shape[3])
        shallow = self._shallow_encode if tiled else self.encoder.shallow
        z = self.encoder(clip, run, lambda frames: self._sliced(frames, shallow))
        return z.permute(0, 4, 1, 2, 3)  # [B, Z, t, y, x]

    def _decode(self, z: Tensor, run: CausalPass) -> Tensor:
        clip = z.permute(0, 2, 3, 4, 1).contiguous()  # [B, t, y, x, Z]
        ratio = self.spatial_compression_ratio
        tiled = self._tiled(clip.shape[2] * ratio, clip.shape[3] * ratio)
        shallow = self._shallow_decode if tiled else self.decoder.shallow
        x = self.decoder(clip, run, lambda frames: self._sliced(frames, shallow))
        return x.permute(0, 4, 1, 2, 3)  # [B, C, T, Y, X]


def _checksum(name: str) -> str:
    """SHA-256 of the weights of an embedded model."""
    if name not in embedded_names():
        raise WeightsError(
            f"image_weights={name!r} is no embedded model ({', '.join(embedded_names())})."
        )
    with find_weights(resolve_folder(name)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
