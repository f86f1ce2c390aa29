"""`AutoencoderDCVideo`: chunks are the whole, nothing looks ahead, and pictures stay pictures."""

from __future__ import annotations

import pytest
import torch

from sana_like.autoencoders.causal import CausalCache
from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.autoencoders.dc_ae_video import AutoencoderDCVideo
from sana_like.autoencoders.presets import VIDEO_AUTOENCODER_PRESETS
from sana_like.state import load_parts, save_parts
from sana_like.weights import hub
from sana_like.weights.errors import WeightsError
from sana_like.weights.strict import WeightsReader, find_weights

# The shape of the embedded autoencoder of pictures, narrower.
SMALL = {
    "latent_channels": 8,
    "encoder_block_types": "GLUMBConv",
    "decoder_block_types": "GLUMBConv",
    "encoder_block_out_channels": (4, 8, 8, 16, 16, 16),
    "decoder_block_out_channels": (4, 8, 8, 16, 16, 16),
    "encoder_layers_per_block": (0, 0, 0, 1, 1, 1),
    "decoder_layers_per_block": (0, 0, 0, 1, 1, 1),
    "encoder_qkv_multiscales": ((),) * 6,
    "decoder_qkv_multiscales": ((),) * 6,
    "resample_empty_stages": True,
    "norm_type": "layer_norm",
    "decoder_norm_types": "layer_norm",
    "expand_ratio": 2.0,
    "scaling_factor": 0.5,
}
# The shape of the published one, narrower.
ATTENTIVE = {
    "latent_channels": 4,
    "attention_head_dim": 4,
    "encoder_block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"),
    "decoder_block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"),
    "encoder_block_out_channels": (8, 8, 16),
    "decoder_block_out_channels": (8, 8, 16),
    "encoder_layers_per_block": (1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1),
    "encoder_qkv_multiscales": ((), (), (5,)),
    "decoder_qkv_multiscales": ((), (), (5,)),
    "upsample_block_type": "interpolate",
    "downsample_block_type": "conv",
    "encoder_temporal_layers": (0, 0, 1),
    "decoder_temporal_layers": (0, 0, 2),
    "temporal_stages": (),
}


def error(out, wanted):
    return float((out.double() - wanted.double()).norm() / wanted.double().norm())


def shaken(model):
    """Every parameter a value that a wrong formula would show, those that start at zero too."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.5)
            elif not parameter.any():
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.fixture(params=["small", "attentive"])
def model(request):
    torch.manual_seed(0)
    return shaken(AutoencoderDCVideo(**SMALL if request.param == "small" else ATTENTIVE))


@pytest.fixture
def small():
    torch.manual_seed(0)
    return shaken(AutoencoderDCVideo(**SMALL))


def in_chunks(function, whole, sizes):
    cache, parts, held = None, [], set()
    for part in whole.split(sizes, dim=2):
        out, cache = function(part, cache)
        parts.append(out)
        held.add(sum(t.untyped_storage().nbytes() for t in cache.frames))
        assert cache.nbytes in held
    assert len(held) == 1, "the cache grows"
    return torch.cat(parts, dim=2)


@pytest.mark.parametrize("groups", [[0] + [1] * 6, [1, 2, 3], [2, 4], [0, 6]])
@torch.no_grad()
def test_chunks_are_the_whole(groups, model):
    factor, side = model.temporal_compression_ratio, model.spatial_compression_ratio
    clip = torch.randn(2, 3, 1 + 6 * factor, 2 * side, side)
    latent = model.encode(clip).latent
    assert latent.shape[2] == 7 == model.latent_frames(clip.shape[2])
    frames = [1 + groups[0] * factor] + [n * factor for n in groups[1:]]
    assert error(in_chunks(model.encode_chunk, clip, frames), latent) <= 1e-5
    decoded = model.decode(latent).sample
    assert decoded.shape == clip.shape and model.pixel_frames(7) == clip.shape[2]
    sizes = [1 + groups[0], *groups[1:]]
    assert error(in_chunks(model.decode_chunk, latent, sizes), decoded) <= 1e-5


@torch.no_grad()
def test_no_frame_looks_ahead_and_all_of_a_group_is_read(small):
    clip = torch.randn(1, 3, 9, 32, 32)
    base, rebuilt = small.encode(clip).latent, small.decode(small.encode(clip).latent).sample
    for frame, group in ((0, 0), (1, 1), (4, 1), (5, 2), (8, 2)):
        other = clip.clone()
        other[:, :, frame] += 0.5
        moved = (small.encode(other).latent - base).abs().amax(dim=(0, 1, 3, 4))
        assert not moved[:group].any() and moved[group] > 1e-4
    latent = base.clone()
    latent[:, :, 1] += 0.5
    moved = (small.decode(latent).sample - rebuilt).abs().amax(dim=(0, 1, 3, 4))
    assert not moved[0].any() and (moved[1:5] > 1e-4).all()


@torch.no_grad()
def test_a_new_one_treats_frames_as_the_pictures_it_came_from():
    image = shaken(AutoencoderDC(**{k: v for k, v in SMALL.items()}))
    model = AutoencoderDCVideo.from_image(image).eval()
    assert model.config.scaling_factor == 0.5
    pictures = torch.randn(2, 3, 32, 64)
    latents = image.encode(pictures).latent
    still = pictures.unsqueeze(2).expand(-1, -1, 9, -1, -1)
    clip_latents = model.encode(still).latent
    assert clip_latents.shape[2] == 3
    for frame in range(3):
        assert error(clip_latents[:, :, frame], latents) <= 1e-6
    decoded, wanted = model.decode(clip_latents).sample, image.decode(latents).sample
    for frame in range(9):
        assert error(decoded[:, :, frame], wanted) <= 1e-6
    assert error(model.encode(pictures.unsqueeze(2)).latent[:, :, 0], latents) <= 1e-6


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 33, 40), (5, 32, 32), (7, 64, 31)])
@torch.no_grad()
def test_any_number_of_frames_and_any_size(size, small):
    clip = torch.randn(1, 3, *size)
    assert small(clip).sample.shape == clip.shape
    frames = 1 + 4 * -(-(size[0] - 1) // 4)
    assert small.encode(clip).latent.shape[2] == 1 + (frames - 1) // 4
    last = clip[:, :, -1:].expand(-1, -1, frames - size[0], -1, -1)
    filled = torch.cat([clip, last], dim=2)
    assert torch.equal(small.encode(clip).latent, small.encode(filled).latent)


@torch.no_grad()
def test_tiles_and_slices_change_nothing(model):
    side = model.spatial_compression_ratio
    clip = torch.randn(2, 3, 5, 4 * side, 3 * side)
    latent = model.encode(clip).latent
    decoded = model.decode(latent).sample
    model.enable_tiling(side, side)
    model.enable_slicing()
    assert error(model.encode(clip).latent, latent) <= 1e-5
    assert error(model.decode(latent).sample, decoded) <= 1e-5
    model.disable_tiling()
    model.disable_slicing()
    assert torch.equal(model.encode(clip).latent, latent)


@torch.no_grad()
def test_a_saved_cache_goes_on_bit_for_bit(small, tmp_path):
    latent = torch.randn(1, 8, 5, 1, 2)
    _, cache = small.decode_chunk(latent[:, :, :3])
    wanted, _ = small.decode_chunk(latent[:, :, 3:], cache)
    save_parts(tmp_path / "cache.safetensors", {"decoder": cache}, {"fps": 8})
    small.save_pretrained(tmp_path / "vae")
    parts, extra = load_parts(tmp_path / "cache.safetensors", {"decoder": CausalCache})
    again = AutoencoderDCVideo.from_pretrained(tmp_path / "vae")
    assert torch.equal(again.decode_chunk(latent[:, :, 3:], parts["decoder"])[0], wanted)
    assert extra == {"fps": 8}


def test_every_layer_learns_and_checkpointing_changes_nothing(model):
    clip = torch.randn(1, 3, 5, 32, 32)

    def gradients():
        model.zero_grad()
        model(clip).sample.square().sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    plain = gradients()
    assert all(gradient.any() for gradient in plain.values())
    model.enable_gradient_checkpointing()
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, plain[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_temporal_layers": (1, 1)}, "2 entries for 6 stages"),
        ({"temporal_stages": (2, 3)}, "stages 3 to 5"),
        ({"temporal_stages": (5,)}, "each of 3 to 4"),
        ({"temporal_stages": (3, 3)}, "halved once"),
        ({"decoder_temporal_layers": (0, 1, 0, 1, 1, 1)}, "stages 3 to 5"),
    ],
)
def test_wrong_configs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        AutoencoderDCVideo(**SMALL | changes)


@torch.no_grad()
def test_wrong_chunks_and_foreign_caches_are_refused(small):
    latent, cache = small.encode_chunk(torch.randn(1, 3, 5, 32, 32))
    for call, message in (
        (lambda: small.encode(torch.randn(1, 3, 32, 32)), "frames, height, width"),
        (lambda: small.decode(torch.randn(1, 4, 2, 1, 1)), "decode needs latents"),
        (lambda: small.encode_chunk(torch.randn(1, 3, 4, 32, 32)), r"1 \+ 4k frames"),
        (lambda: small.encode_chunk(torch.randn(1, 3, 5, 32, 32), cache), "4k later"),
        (lambda: small.encode_chunk(torch.randn(1, 3, 4, 64, 32), cache), "another model"),
        (lambda: small.encode_chunk(torch.randn(2, 3, 4, 32, 32), cache), "another model"),
        (lambda: small.decode_chunk(latent, CausalCache(cache.frames[:1])), "another model"),
        (lambda: CausalCache.from_tensors({"x": latent}, {"layers": 1}), "not the tensors"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("name", VIDEO_AUTOENCODER_PRESETS)
def test_preset_holds_all_weights_of_the_image_autoencoder(name):
    chosen = VIDEO_AUTOENCODER_PRESETS[name]
    with torch.device("meta"):
        model = AutoencoderDCVideo(**chosen.config)
        image = AutoencoderDC(**chosen.config)
    assert model.num_parameters() == chosen.num_parameters
    assert model.temporal_compression_ratio == 4 and model.spatial_compression_ratio == 32
    assert image.state_dict().keys() < model.state_dict().keys()
    extra = model.state_dict().keys() - image.state_dict().keys()
    assert all(key.split(".")[1] == "temporal" for key in extra)


@torch.no_grad()
def test_weights_of_an_embedded_image_autoencoder_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "ZOO", tmp_path)
    shaken(AutoencoderDC(**SMALL)).save_pretrained(tmp_path / "tiny-ae", int8=True)
    image = AutoencoderDC.from_pretrained("tiny-ae")
    model = shaken(AutoencoderDCVideo.from_image(image))
    model.load_state_dict(image.state_dict(), strict=False)
    model.decoder.conv_in.weight.mul_(1.5)
    model.share_image_weights("tiny-ae")
    model.save_pretrained(tmp_path / "clips")
    loaded = AutoencoderDCVideo.from_pretrained(tmp_path / "clips")
    for key, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor), key
    written = WeightsReader.open(find_weights(tmp_path / "clips")).tensors
    assert "decoder.conv_in.weight" in written and "encoder.conv_in.weight" not in written
    model.share_image_weights(None)
    model.save_pretrained(tmp_path / "whole")
    assert len(WeightsReader.open(find_weights(tmp_path / "whole")).tensors) > len(written)
    image.decoder.conv_out.bias.add_(1)
    image.save_pretrained(tmp_path / "tiny-ae")
    with pytest.raises(WeightsError, match="the release that both came with"):
        AutoencoderDCVideo.from_pretrained(tmp_path / "clips")
    with pytest.raises(WeightsError, match="no embedded model"):
        model.share_image_weights("nothing")
