"""What the video transformer costs and what reaches it: modulation, 8 bits, LoRA, guidance."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from sana_like.layers.patch import patchify, unpatchify_3d
from sana_like.layers.pointwise import KernelLinear
from sana_like.transformers.first_block_cache import FirstBlockCache
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.transformers.video import SanaVideoTransformer3DModel
from sana_like.weights.quantize import is_quantized, parameter_bytes, quantize

NARROW = {
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "num_layers": 3,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 32,
    "cross_attention_dim": 64,
    "caption_channels": 20,
    "mlp_ratio": 3.0,
}


def error(out, wanted):
    return float((out.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.fixture
def model(shake):
    return shake(SanaVideoTransformer3DModel(**NARROW))


@pytest.fixture
def inputs():
    return torch.randn(2, 16, 3, 4, 6), torch.randn(2, 5, 20)


@torch.no_grad()
def test_modulation_has_a_row_for_each_frame_and_never_for_each_token(model, inputs):
    rows = []
    model.time_embed.linear.register_forward_hook(lambda *call: rows.append(call[2].shape[:-1]))
    frames = torch.tensor([[0.0, 500.0, 500.0], [0.0, 20.0, 20.0]])
    mixed = model(*inputs, frames).sample
    assert rows == [(2, 3)]
    assert error(model(*inputs, torch.tensor([500.0, 20.0])).sample, mixed) > 1e-2
    same = model(*inputs, torch.tensor([[500.0] * 3, [20.0] * 3])).sample
    assert error(model(*inputs, torch.tensor([500.0, 20.0])).sample, same) <= 1e-6
    assert rows[1:] == [(2, 1), (2, 3), (2, 1)]


@torch.no_grad()
def test_a_clean_frame_conditions_the_others(model, inputs):
    clip, text = inputs
    times = torch.tensor([[0.0, 500.0, 500.0]] * 2)
    other = clip.clone()
    other[:, :, 0] += 1
    moved = (model(other, text, times).sample - model(clip, text, times).sample).abs()
    assert (moved.amax(dim=(0, 1, 3, 4)) > 1e-3).all()


@torch.no_grad()
def test_a_picture_is_a_clip_of_one_frame(model, inputs):
    clip, text = inputs
    picture = model(clip[:, :, :1], text, 500.0).sample
    assert picture.shape == (2, 16, 1, 4, 6)
    # Its temporal convolution reads nothing beside it.
    for block in model.transformer_blocks:
        kernel = block.ff.conv_temp.weight.unflatten(1, (3, -1))
        kernel[:, [0, 2]] = 0
    assert error(model(clip[:, :, :1], text, 500.0).sample, picture) <= 1e-6


@torch.no_grad()
def test_a_new_model_treats_frames_as_pictures_in_its_feed_forward():
    model = SanaVideoTransformer3DModel(**NARROW)
    x = torch.randn(1, 3, 2, 3, 64)
    feed_forward = model.transformer_blocks[0].ff
    alone = torch.cat([feed_forward(x[:, i : i + 1])[0] for i in range(3)], dim=1)
    assert torch.allclose(feed_forward(x)[0], alone, atol=1e-6)


@torch.no_grad()
def test_eight_bits_reach_every_product_of_the_blocks(model, inputs):
    pytest.importorskip("torchao")
    exact = model(*inputs, 500.0).sample
    before = {name: p.nbytes for name, p in model.named_parameters() if "blocks" in name}
    report = quantize(model)
    # Four projections of each attention, and expansion, projection and temporal convolution.
    assert len(report.quantized) == 3 * (4 + 4 + 3)
    assert "transformer_blocks.1.ff.conv_temp" in report.quantized
    assert "patch_embedding" in report.kept
    blocks = model.transformer_blocks
    assert is_quantized(blocks[0].ff.conv_temp.weight)
    assert parameter_bytes(blocks) < 0.35 * sum(before.values())
    assert 0 < error(model(*inputs, 500.0).sample, exact) < 0.03


@torch.no_grad()
def test_lora_reaches_the_temporal_convolution_in_the_published_shape(model, inputs, tmp_path):
    from peft import LoraConfig
    from safetensors.torch import load_file

    plain = model(*inputs, 500.0).sample
    targets = ["to_q", "conv_temp", "patch_embedding"]
    model.add_adapter(LoraConfig(r=2, target_modules=targets, init_lora_weights=False))
    adapted = model(*inputs, 500.0).sample
    assert error(adapted, plain) > 1e-3
    path = model.save_lora_adapter(tmp_path)
    shapes = {key: tuple(value.shape) for key, value in load_file(path).items()}
    prefix = "transformer.transformer_blocks.0.ff.conv_temp"
    assert shapes[f"{prefix}.lora_A.weight"] == (2, 64, 3, 1)
    assert shapes[f"{prefix}.lora_B.weight"] == (64, 2, 1, 1)
    assert shapes["transformer.patch_embedding.lora_A.weight"] == (2, 16, 1, 2, 2)
    model.unload_lora()
    assert torch.equal(model(*inputs, 500.0).sample, plain)
    model.load_lora_adapter(tmp_path)
    assert error(model(*inputs, 500.0).sample, adapted) <= 1e-6


@torch.no_grad()
def test_skipped_rows_are_those_of_a_model_without_the_block(model, inputs):
    rows = torch.tensor([False, True])
    out = model(*inputs, 500.0, skipped_layers=[1], perturbed_rows=rows).sample
    plain = model(*inputs, 500.0).sample
    del model.transformer_blocks[1]
    model._text_kind = (2, *model._text_kind[1:])
    shorter = model(*inputs, 500.0).sample
    assert error(out[0], plain[0]) <= 1e-6 and error(out[1], shorter[1]) <= 1e-6
    assert error(plain, shorter) > 1e-2


@torch.no_grad()
def test_the_block_cache_serves_whole_clips_and_refuses_streams(model, inputs):
    cache = FirstBlockCache(0.1)
    plain = model(*inputs, 500.0).sample
    for step, bound in ((0, 1e-6), (1, 1e-2)):
        cache.begin_step(step, 3)
        out = model(*inputs, 500.0, block_cache=cache.for_pass(["text"])).sample
        assert error(out, plain) <= bound
    assert cache.passes_skipped == [1, 1]
    with pytest.raises(ValueError, match="state would be lost"):
        state = model.new_state(2, 4, 6)
        model(*inputs, 500.0, state=state, block_cache=cache.for_pass(["text"]))


@torch.no_grad()
def test_operations_are_counted_right(model, inputs):
    with FlopCounterMode(display=False) as counter:
        model(*inputs, 500.0)
    counted, estimated = counter.get_total_flops(), model.flops(4, 6, 5, batch=2, frames=3)
    assert 0.99 <= estimated / counted <= 1.01
    with pytest.raises(ValueError, match="patches"):
        model.flops(4, 5, 5)


@pytest.mark.parametrize("patch", [(1, 2, 2), (2, 1, 3)])
@torch.no_grad()
def test_patches_are_the_windows_of_the_published_convolution(patch):
    clip = torch.randn(2, 5, 2 * patch[0], 3 * patch[1], 4 * patch[2])
    layer = KernelLinear(5, 7, patch)
    tokens = layer(patchify(clip, patch))
    conv = torch.nn.functional.conv3d(clip, layer.publish(layer.weight), layer.bias, stride=patch)
    assert error(tokens, conv.flatten(2).transpose(1, 2)) <= 1e-6
    cells = patchify(clip, patch).unflatten(-1, (5, -1)).transpose(-1, -2).flatten(-2)
    assert torch.equal(unpatchify_3d(cells, (2, 3, 4), patch), clip)


@torch.no_grad()
def test_a_model_from_an_image_model_makes_its_pictures(shake):
    image = shake(SanaTransformer2DModel(**NARROW, patch_size=2, qk_norm="rms_norm_across_heads"))
    model = SanaVideoTransformer3DModel.from_image(image).eval()
    assert model.config.patch_size == (1, 2, 2)
    # One cell stands at the origin, where rotary positions turn nothing.
    cell, text = torch.randn(2, 32, 1, 2, 2), torch.randn(2, 5, 20)
    for frame in (cell, cell.expand(-1, -1, 3, -1, -1)[:, :, :1]):
        made = model(frame, text, 300.0).sample[:, :, 0]
        assert error(made, image(frame[:, :, 0], text, 300.0).sample) <= 1e-5
    assert all(not block.ff.conv_temp.weight.any() for block in model.transformer_blocks)


def test_a_shallower_model_takes_blocks_evenly(shake):
    image = shake(SanaTransformer2DModel(**NARROW | {"num_layers": 5}, qk_norm=None))
    model = SanaVideoTransformer3DModel.from_image(image, num_layers=3)
    for mine, theirs in zip(model.transformer_blocks, (0, 2, 4), strict=True):
        wanted = image.transformer_blocks[theirs].attn1.to_q.weight
        assert torch.equal(mine.attn1.to_q.weight, wanted)
    with pytest.raises(ValueError, match="exceeds the 5 blocks"):
        SanaVideoTransformer3DModel.from_image(image, num_layers=6)
    with pytest.raises(ValueError, match="leave out of the changes"):
        SanaVideoTransformer3DModel.from_image(image, mlp_ratio=2.0)
    scaled = SanaTransformer2DModel(**NARROW, timestep_scale=1000.0)
    with pytest.raises(ValueError, match="timestep_scale"):
        SanaVideoTransformer3DModel.from_image(scaled)
