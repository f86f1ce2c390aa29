"""What diffusers' mixins give: LoRA, first-block cache, layerwise casting; and cost estimates."""

from __future__ import annotations

import weakref

import diffusers
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel

LORA_TARGETS = ["to_q", "to_k", "conv_inverted", "conv_point"]


@pytest.fixture
def model(narrow, shake):
    return shake(SanaTransformer2DModel(**narrow | {"num_layers": 4}))


@torch.no_grad()
def test_lora_reaches_attention_and_feed_forward(model, narrow, draw_inputs, tmp_path):
    from peft import LoraConfig

    inputs = draw_inputs(model, 3, 3).kwargs()
    plain = model(**inputs).sample
    model.add_adapter(LoraConfig(r=2, target_modules=LORA_TARGETS, init_lora_weights=False))
    block = model.transformer_blocks[0]
    for layer in (block.attn1.to_q, block.attn2.to_q, block.ff.conv_inverted, block.ff.conv_point):
        assert "default" in layer.lora_A
    adapted = model(**inputs).sample
    assert not torch.allclose(adapted, plain, atol=1e-3)
    silent = model(**inputs, attention_kwargs={"scale": 0.0}).sample
    torch.testing.assert_close(silent, plain)
    torch.testing.assert_close(model(**inputs).sample, adapted)
    text, mask = inputs["encoder_hidden_states"], inputs["encoder_attention_mask"]
    context = model.prepare_text(text, mask, attention_kwargs={"scale": 0.0})
    args = (inputs["hidden_states"], context, inputs["timestep"])
    torch.testing.assert_close(model(*args, attention_kwargs={"scale": 0.0}).sample, plain)

    model.save_lora_adapter(tmp_path)
    fresh = SanaTransformer2DModel(**narrow | {"num_layers": 4}).eval()
    fresh.load_state_dict(
        {k.replace(".base_layer", ""): v for k, v in model.state_dict().items() if "lora" not in k}
    )
    torch.testing.assert_close(fresh(**inputs).sample, plain)
    fresh.load_lora_adapter(tmp_path, prefix=None, use_safetensors=True)
    torch.testing.assert_close(fresh(**inputs).sample, adapted)


@torch.no_grad()
def test_first_block_cache_skips_the_rest_when_little_changes(model, draw_inputs):
    inputs = draw_inputs(model, 3, 3).kwargs()
    plain = model(**inputs).sample
    runs = []
    for block in model.transformer_blocks:
        block.ff.register_forward_pre_hook(lambda *_: runs.append(1))
    model.enable_cache(diffusers.FirstBlockCacheConfig(threshold=0.05))
    with model.cache_context("cond"):
        first = model(**inputs).sample
        assert len(runs) == 4
        again = model(**inputs).sample
        assert len(runs) == 5
    torch.testing.assert_close(first, plain)
    torch.testing.assert_close(again, plain, rtol=1e-3, atol=1e-4)
    model.disable_cache()
    model(**inputs)
    assert len(runs) == 9


def test_caches_that_cannot_work_are_refused(model):
    with pytest.raises(ValueError, match="FirstBlockCacheConfig"):
        model.enable_cache(diffusers.PyramidAttentionBroadcastConfig())


def test_layerwise_casting_stores_8_bits_and_computes_in_16(model, draw_inputs):
    model.bfloat16()
    inputs = draw_inputs(model, 3, 3).kwargs(torch.bfloat16)
    wanted = model(**inputs).sample
    model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.bfloat16)
    assert model.transformer_blocks[0].ff.conv_inverted.weight.dtype == torch.float8_e4m3fn
    assert model.patch_embed.proj.weight.dtype == torch.bfloat16
    out = model(**inputs).sample
    assert (out - wanted).float().norm() <= 0.3 * wanted.float().norm()


@pytest.mark.parametrize(
    "kind",
    [
        {"offload_type": "leaf_level"},
        {"offload_type": "block_level", "num_blocks_per_group": 1},
        {"offload_type": "block_level", "num_blocks_per_group": 3},
    ],
)
@torch.no_grad()
def test_offloaded_weights_are_there_when_they_are_read(kind, narrow, shake, draw_inputs, tmp_path):
    model = shake(SanaTransformer2DModel(**narrow | {"num_layers": 4, "interpolation_scale": 1.0}))
    inputs = draw_inputs(model, 3, 3)
    wanted = model(**inputs.kwargs()).sample
    cpu = torch.device("cpu")
    # On disk, so that weights which are not brought in are not there at all.
    model.enable_group_offload(cpu, cpu, offload_to_disk_path=str(tmp_path), **kind)
    for _ in range(2):
        torch.testing.assert_close(model(**inputs.kwargs()).sample, wanted)
        context = model.prepare_text(inputs.text, inputs.mask)
        out = model(inputs.latent, context, inputs.timestep).sample
        torch.testing.assert_close(out, wanted)


def test_repeated_blocks_can_be_compiled_alone(model):
    model.compile_repeated_blocks(backend="eager")
    out = model(torch.randn(1, 32, 3, 3), torch.randn(1, 4, 20), 10.0).sample
    assert out.isfinite().all()


@pytest.mark.parametrize("changes", [{}, {"guidance_embeds": True}, {"patch_size": 2}])
@torch.no_grad()
def test_flops_are_what_the_counter_counts(changes, narrow):
    model = SanaTransformer2DModel(**narrow | changes)
    args = (torch.randn(2, 32, 4, 6), torch.randn(2, 11, 20), 10.0)
    guidance = 0.45 if changes.get("guidance_embeds") else None
    with FlopCounterMode(display=False) as counter:
        model(*args, guidance=guidance)
    assert model.flops(4, 6, 11, 2) == counter.get_total_flops()


@torch.no_grad()
def test_controlnet_flops_are_what_the_counter_counts(narrow):
    model = SanaControlNetModel(**narrow)
    latent = torch.randn(2, 32, 4, 6)
    with FlopCounterMode(display=False) as counter:
        model(latent, torch.randn(2, 11, 20), 10.0, latent)
    assert model.flops(4, 6, 11, 2) == counter.get_total_flops()


class PeakBytes(TorchDispatchMode):
    """Highest number of bytes in storages that were made under this mode."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in known or storage._cdata in self.seen:
                continue
            self.seen.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.freed, storage._cdata, storage.nbytes())
        return out

    def freed(self, cdata, size):
        self.seen.discard(cdata)
        self.now -= size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_activation_estimate_is_near_the_measured_peak(dtype, narrow):
    model = SanaTransformer2DModel(**narrow | {"num_layers": 3}).to(dtype)
    latent, text = torch.randn(2, 32, 24, 24).to(dtype), torch.randn(2, 11, 20).to(dtype)
    with PeakBytes() as peak:
        model(latent, text, 10.0)
    assert 0.9 <= model.activation_bytes(24, 24, 11, 2) / peak.peak <= 1.5


def test_costs_grow_linearly_with_the_number_of_tokens(narrow):
    model = SanaTransformer2DModel(**narrow)
    small, medium, large = (model.flops(8, width, 11) for width in (8, 16, 24))
    assert large - medium == medium - small
    assert model.activation_bytes(8, 8, 11, 4) == 4 * model.activation_bytes(8, 8, 11, 1)
    with pytest.raises(ValueError, match="patch"):
        model.flops(0, 8, 11)
