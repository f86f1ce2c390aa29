"""Estimates of memory against what a call really allocates."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from sana_like import AutoencoderDC, SanaTransformer2DModel
from sana_like_pipelines import SanaPipeline


class Watch(TorchDispatchMode):
    """Counts the bytes of tensors that live at one time, views counted once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key, size) -> None:
        self._known.discard(key)
        self.now -= size


@pytest.fixture
def pipe():
    """Wide enough that activations, not odds and ends, decide."""
    transformer = SanaTransformer2DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=32,
        num_layers=2,
        num_cross_attention_heads=4,
        cross_attention_head_dim=32,
        cross_attention_dim=128,
        caption_channels=64,
        sample_size=32,
    )
    vae = AutoencoderDC(
        latent_channels=8,
        attention_head_dim=32,
        encoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(32, 64, 64),
        decoder_block_out_channels=(32, 64, 64),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        encoder_qkv_multiscales=((), (), (5,)),
        decoder_qkv_multiscales=((), (), (5,)),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
    )
    from sana_like import FlowDPMSolverScheduler

    made = SanaPipeline(None, None, vae.eval(), transformer.eval(), FlowDPMSolverScheduler())
    made.set_progress_bar_config(disable=True)
    return made


def measured(function) -> int:
    with torch.no_grad(), Watch() as watch:
        function()
    return watch.peak


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_within_a_third(pipe, batch, dtype):
    pipe.to(dtype)
    estimate = pipe.estimate(192, 256, batch, guidance_scale=1.0).activations
    latents = torch.randn(batch, 8, 48, 64, dtype=dtype)
    text = pipe.transformer.prepare_text(torch.randn(batch, 300, 64, dtype=dtype))
    step = measured(lambda: pipe.transformer(latents, text, torch.tensor(500.0)))
    assert 0.65 < estimate["denoise"] / step < 1.5
    decode = measured(lambda: pipe.vae.decode(latents))
    assert 0.65 < estimate["decode"] / decode < 1.5


def test_tiling_and_slicing_count(pipe):
    whole = pipe.estimate(512, 512, 4).activations["decode"]
    pipe.vae.enable_slicing()
    sliced = pipe.estimate(512, 512, 4).activations["decode"]
    pipe.vae.enable_tiling(tile_sample_min_height=128, tile_sample_min_width=128)
    tiled = pipe.estimate(512, 512, 4).activations["decode"]
    assert tiled < sliced < whole
    assert sliced == pytest.approx(whole / 4, rel=0.01)


def test_weights_and_offloading(pipe):
    plain = pipe.estimate(256, 256)
    weights = {
        name: sum(p.numel() * 4 for p in getattr(pipe, name).parameters())
        for name in ("transformer", "vae")
    }
    assert {name: plain.weights[name] for name in weights} == weights
    assert plain.resident["denoise"] == sum(weights.values())
    by_model = pipe.estimate(256, 256, offload="model")
    assert by_model.resident["denoise"] == weights["transformer"]
    assert by_model.resident["decode"] == weights["vae"]
    by_layer = pipe.estimate(256, 256, offload="layers")
    assert by_layer.peak < by_model.peak < plain.peak
    assert "GiB" in str(plain)


def test_branches_and_pictures_count(pipe):
    def denoise(**arguments):
        return pipe.estimate(256, 256, **arguments).activations["denoise"]

    one = denoise(guidance_scale=1.0)
    assert denoise(guidance_scale=4.0) == 2 * one
    assert denoise(guidance_scale=4.0, pag_scale=1.0, num_images=2) == 6 * one
    assert denoise(guidance_scale=4.0, guidance_passes="sequential") == one


def test_text_encoder_counts(sana):
    assert sana.estimate().activations["text"] > 0
    assert sana.estimate().weights["text_encoder"] > 0


@pytest.mark.parametrize(
    "arguments", [{"height": 0}, {"num_images": 0}, {"offload": "disk"}, {"width": 2.5}]
)
def test_refusals(pipe, arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        pipe.estimate(**{"height": 64, "width": 64} | arguments)
