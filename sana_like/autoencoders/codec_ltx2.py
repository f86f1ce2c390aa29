"""The autoencoder of LTX-2 (arXiv 2601.03233), diffusers' class, as a codec.

Whether its decoder looks ahead is a setting of the weights. One that does not is decoded in chunks
here: the same layers run, each with the last two frames it saw before this chunk.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sana_like.autoencoders.causal import CausalCache, CausalPass
from sana_like.autoencoders.codec import VideoCodec
from sana_like.transformers.offload import weights_present

TIME = 2  # axis of time in [B, C, T, Y, X]


class LTX2Codec(VideoCodec):
    """Latents are centred and scaled per channel by buffers of the autoencoder."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = model.config
        self.latent_channels = config.latent_channels
        # Told from the layers, of which the class counts every one for both ratios where its config
        # is silent.
        used = _as_tuple(config.spatio_temporal_scaling)
        pairs = zip(
            config.downsample_type, used * (len(config.downsample_type) // len(used)), strict=True
        )
        steps = [kind for kind, scales in pairs if scales]
        self.spatial_ratio = config.patch_size * 2 ** sum(kind != "temporal" for kind in steps)
        self.temporal_ratio = config.patch_size_t * 2 ** sum(kind != "spatial" for kind in steps)
        if not config.decoder_causal:
            self.why_no_stream = "its decoder looks ahead (decoder_causal=False)"
        elif config.timestep_conditioning:
            self.why_no_stream = "its decoder is conditioned on a time (timestep_conditioning)"
        elif any(_as_tuple(config.decoder_inject_noise)):
            self.why_no_stream = "its decoder draws noise (decoder_inject_noise)"

    def enable_tiling(self) -> None:
        """Tiles of space and of time; see `VideoCodec.enable_tiling`."""
        super().enable_tiling()
        # The class counts its tiles by these, and guesses them wrong where its config is silent.
        self.model.spatial_compression_ratio = self.spatial_ratio
        self.model.temporal_compression_ratio = self.temporal_ratio
        self.model.use_framewise_encoding = self.model.use_framewise_decoding = True

    def disable_tiling(self) -> None:
        """Work on whole clips again."""
        super().disable_tiling()
        self.model.use_framewise_encoding = self.model.use_framewise_decoding = False

    def _normalise(self, latents: Tensor) -> Tensor:
        mean, std = self._statistics(latents)
        return (latents - mean) * self.model.config.scaling_factor / std

    def _restore(self, latents: Tensor) -> Tensor:
        mean, std = self._statistics(latents)
        return latents * std / self.model.config.scaling_factor + mean

    def _statistics(self, latents: Tensor) -> list[Tensor]:
        model = self.model
        return [
            values.to(latents.device, latents.dtype).view(1, -1, 1, 1, 1)
            for values in (model.latents_mean, model.latents_std)
        ]

    def _encode(self, frames: Tensor) -> Tensor:
        return self.model.encode(frames, return_dict=False)[0].mode()

    def _decode(self, latents: Tensor) -> Tensor:
        return self.model.decode(latents, return_dict=False)[0]

    def _decode_chunk(
        self, latents: Tensor, cache: CausalCache | None
    ) -> tuple[Tensor, CausalCache]:
        run, decoder = CausalPass(cache), self.model.decoder
        with weights_present(self.model):
            x = _convolve(decoder.conv_in, latents, run)
            for block in (decoder.mid_block, *decoder.up_blocks):
                x = _block(block, x, run)
            x = _convolve(decoder.conv_out, decoder.conv_act(decoder.norm_out(x)), run)
        patch = decoder.patch_size
        return _to_space(x, (decoder.patch_size_t, patch, patch), swapped=True), run.cache()


def _block(block: Any, x: Tensor, run: CausalPass) -> Tensor:
    if getattr(block, "conv_in", None) is not None:
        x = _residual(block.conv_in, x, run)
    for upsampler in getattr(block, "upsamplers", None) or ():
        x = _upsample(upsampler, x, run)
    for layer in block.resnets:
        x = _residual(layer, x, run)
    return x


def _residual(block: Any, x: Tensor, run: CausalPass) -> Tensor:
    hidden = _convolve(block.conv1, block.nonlinearity(block.norm1(x)), run)
    hidden = block.dropout(block.nonlinearity(block.norm2(hidden)))
    hidden = _convolve(block.conv2, hidden, run)
    if block.norm3 is not None:
        x = block.norm3(x.movedim(1, -1)).movedim(-1, 1)
    if block.conv_shortcut is not None:
        x = block.conv_shortcut(x)
    return hidden + x


def _upsample(layer: Any, x: Tensor, run: CausalPass) -> Tensor:
    out = _to_space(_convolve(layer.conv, x, run), layer.stride)
    if layer.residual:
        same = _to_space(x, layer.stride)
        out = out + same.repeat(1, out.shape[1] // same.shape[1], 1, 1, 1)
    # The first frame of all stands alone.
    return out[:, :, layer.stride[0] - 1 :] if run.starts else out


def _convolve(layer: Any, x: Tensor, run: CausalPass) -> Tensor:
    before = layer.kernel_size[0] - 1
    return layer.conv(run.with_past(x, before, dim=TIME) if before else x)


def _to_space(x: Tensor, stride: tuple[int, int, int], *, swapped: bool = False) -> Tensor:
    """`[B, C*st*sy*sx, T, Y, X]` to `[B, C, T*st, Y*sy, X*sx]`.

    `swapped`: the channels hold the patch's columns before its rows, as at the decoder's end.
    """
    time, rows, columns = stride
    cells = x.unflatten(1, (-1, time, columns, rows) if swapped else (-1, time, rows, columns))
    row, column = (4, 3) if swapped else (3, 4)
    cells = cells.permute(0, 1, 5, 2, 6, row, 7, column)  # [B, C, T, st, Y, sy, X, sx]
    return cells.flatten(6, 7).flatten(4, 5).flatten(2, 3)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, bool) else tuple(value)
