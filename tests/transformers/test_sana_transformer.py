"""Behaviour of the image transformer that needs no other implementation."""

from __future__ import annotations

import pytest
import torch

from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.weights.model import published_state_dict

QK = {"qk_norm": "rms_norm_across_heads"}
SPRINT = QK | {"guidance_embeds": True}


@pytest.fixture
def make(narrow, shake):
    def make_model(**changes):
        return shake(SanaTransformer2DModel(**narrow | {"num_layers": 3} | changes))

    return make_model


@pytest.mark.parametrize("changes", [{}, SPRINT, {"interpolation_scale": 1.0}])
@torch.no_grad()
def test_rows_of_a_batch_do_not_know_each_other(changes, make, draw_inputs):
    model = make(**changes)
    inputs = draw_inputs(model, 5, 4)
    both = model(**inputs.kwargs()).sample
    for row in range(2):
        alone = {k: v if v is None else v[row : row + 1] for k, v in inputs.kwargs().items()}
        torch.testing.assert_close(model(**alone).sample[0], both[row], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_without_text_and_convolution_tokens_could_be_reordered(make):
    # The depthwise convolution is all that tells a token where it is: a picture of one row whose
    # kernel has only its middle tap is mixed alike in any order.
    model = make()
    for block in model.transformer_blocks:
        kernel = block.ff.conv_depth.weight
        middle = kernel[:, :, 1, 1].clone()
        kernel.zero_()
        kernel[:, :, 1, 1] = middle
    latent, order = torch.randn(1, 32, 1, 9), torch.randperm(9)
    text = torch.randn(1, 4, 20)
    out = model(latent, text, 10.0).sample
    shuffled = model(latent[..., order], text, 10.0).sample
    torch.testing.assert_close(shuffled, out[..., order], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("timestep", [500.5, torch.tensor(500.5), torch.tensor([500.5])])
@torch.no_grad()
def test_one_timestep_serves_every_row(timestep, make, draw_inputs):
    model = make()
    inputs = draw_inputs(model, 3, 3).kwargs()
    wanted = model(**inputs | {"timestep": torch.tensor([500.5, 500.5])}).sample
    assert torch.equal(model(**inputs | {"timestep": timestep}).sample, wanted)
    other = model(**inputs | {"timestep": torch.tensor(500)}).sample
    assert not torch.equal(other, wanted)  # the fraction counts


@torch.no_grad()
def test_one_guidance_serves_every_row(make, draw_inputs):
    model = make(**SPRINT)
    inputs = draw_inputs(model, 3, 3).kwargs()
    wanted = model(**inputs | {"guidance": torch.tensor([0.45, 0.45])}).sample
    torch.testing.assert_close(model(**inputs | {"guidance": 0.45}).sample, wanted)
    assert not torch.equal(model(**inputs | {"guidance": 0.2}).sample, wanted)


@torch.no_grad()
def test_tuple_and_output_object_are_equal(make, draw_inputs):
    model = make()
    inputs = draw_inputs(model, 3, 3).kwargs()
    result = model(**inputs, return_dict=False)
    assert isinstance(result, tuple) and len(result) == 1
    assert torch.equal(result[0], model(**inputs).sample)


@pytest.mark.parametrize(
    ("changes", "wrong", "message"),
    [
        ({}, {"attention_mask": torch.ones(2, 9)}, "attention_mask"),
        ({}, {"guidance": torch.tensor([1.0])}, "guidance_embeds=False"),
        (SPRINT, {"guidance": None}, "pass guidance"),
        ({}, {"timestep": torch.zeros(3)}, "timestep has shape"),
        ({}, {"hidden_states": torch.randn(2, 31, 3, 3)}, "this model reads"),
        ({}, {"hidden_states": torch.randn(2, 32, 0, 3)}, "no side of zero"),
        ({}, {"hidden_states": torch.randn(32, 3, 3)}, "this model reads"),
        ({"patch_size": 2}, {}, "multiples of the patch size"),
        ({}, {"encoder_hidden_states": torch.randn(2, 12, 21)}, "text embeddings have shape"),
        ({}, {"encoder_hidden_states": torch.randn(1, 12, 20)}, "text mask has shape"),
        ({}, {"encoder_attention_mask": torch.ones(2, 11)}, "text mask has shape"),
        ({}, {"attention_kwargs": {"sclae": 1.0}}, "sclae"),
        ({}, {"controlnet_block_samples": [torch.randn(2, 9, 64)] * 3}, "fewer residuals"),
        ({}, {"controlnet_block_samples": [torch.randn(2, 8, 64)]}, "residual 0 has shape"),
        ({}, {"perturbed_layers": [3]}, "blocks 0 to 2"),
        ({}, {"perturbed_layers": [-1]}, "blocks 0 to 2"),
        ({}, {"perturbed_rows": torch.tensor([True, False])}, "without perturbed_layers"),
        ({}, {"perturbed_layers": [1], "perturbed_rows": torch.tensor([1, 0])}, "must be bool"),
    ],
)
def test_wrong_arguments_are_refused_before_any_block_runs(
    changes, wrong, message, make, draw_inputs
):
    model = make(**changes)
    inputs = draw_inputs(model, 3, 3).kwargs() | wrong
    for block in model.transformer_blocks:
        block.register_forward_pre_hook(lambda *_: pytest.fail("a block ran"))
    with pytest.raises(ValueError, match=message):
        model(**inputs)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cross_attention_dim": 65}, "must equal"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"num_cross_attention_heads": None}, "num_cross_attention_heads=None"),
        ({"qk_norm": "layer_norm"}, "rms_norm_across_heads"),
        ({"mlp_ratio": 0.0}, "mlp_ratio"),
        ({"attention_clip": 0.0}, "attention_clip"),
        ({"patch_size": 0}, "patch_size"),
    ],
)
def test_wrong_configs_are_refused(wrong, message, narrow):
    with pytest.raises(ValueError, match=message):
        SanaTransformer2DModel(**narrow | wrong)


@pytest.mark.parametrize("changes", [{}, QK])
@torch.no_grad()
def test_perturbed_rows_equal_separate_passes(changes, make, draw_inputs):
    model = make(**changes)
    inputs = draw_inputs(model, 3, 4).kwargs()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    plain = model(**inputs).sample
    every = model(**inputs, perturbed_layers={1}).sample
    mixed = model(**inputs, perturbed_layers=[1], perturbed_rows=torch.tensor([True, False])).sample
    assert torch.equal(mixed[0], every[0]) and torch.equal(mixed[1], plain[1])
    assert not torch.allclose(every, plain)
    assert torch.equal(model(**inputs).sample, plain)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@torch.no_grad()
def test_perturbation_equals_diffusers_where_that_is_right(make, draw_inputs):
    import diffusers
    from diffusers.models.attention_processor import PAGIdentitySanaLinearAttnProcessor2_0

    model = make()
    config = {key: value for key, value in model.config.items() if key != "attention_clip"}
    reference = diffusers.SanaTransformer2DModel(**config).eval()
    reference.load_state_dict(published_state_dict(model))
    reference.transformer_blocks[1].attn1.set_processor(PAGIdentitySanaLinearAttnProcessor2_0())
    inputs = draw_inputs(model, 3, 4).kwargs()
    wanted = reference(**inputs).sample  # the second half of the batch is perturbed
    out = model(**inputs, perturbed_layers=[1], perturbed_rows=torch.tensor([False, True])).sample
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, SPRINT])
def test_gradient_checkpointing_changes_no_gradient(changes, make, draw_inputs):
    model = make(**changes).train()
    inputs = draw_inputs(model, 3, 3).kwargs()
    residuals = [torch.randn(2, 9, 64)]

    def gradients():
        model.zero_grad()
        out = model(**inputs, controlnet_block_samples=residuals, perturbed_layers=[2]).sample
        out.square().mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    model.enable_gradient_checkpointing()
    runs = []
    model.transformer_blocks[0].register_forward_pre_hook(lambda *_: runs.append(1))
    checkpointed = gradients()
    assert len(runs) == 2  # once forward, once again in the backward pass
    assert plain.keys() == checkpointed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-5, atol=1e-7)


def test_every_parameter_gets_a_gradient(make, draw_inputs):
    model = make(**SPRINT).train()
    model(**draw_inputs(model, 3, 3).kwargs()).sample.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_a_fresh_model_is_calm(narrow, draw_inputs):
    model = SanaTransformer2DModel(**narrow | {"num_layers": 8})
    out = model(**draw_inputs(model, 8, 8).kwargs()).sample
    assert 0.1 < out.std().item() < 10
    assert model.caption_norm.weight.unique().tolist() == pytest.approx([0.01])
    assert model.time_embed.linear.weight.std().item() == pytest.approx(0.02, rel=0.05)


@torch.no_grad()
def test_tables_kept_in_fp32_do_not_widen_the_stream(make, draw_inputs):
    model = make(**QK).bfloat16()
    for module in model.modules():
        if hasattr(module, "scale_shift_table"):
            module.scale_shift_table.data = module.scale_shift_table.data.float()
    seen = []
    for block in model.transformer_blocks:
        block.ff.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
        block.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    out = model(**draw_inputs(model, 3, 3).kwargs(torch.bfloat16)).sample
    assert out.dtype == torch.bfloat16 and set(seen) == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_block_with_huge_output_stays_finite(dtype, make, draw_inputs):
    model = make()
    model.transformer_blocks[1].attn1.to_out[0].weight.mul_(1e4)
    model.transformer_blocks[1].ff.conv_point.weight.mul_(1e4)
    out = model.to(dtype)(**draw_inputs(model, 4, 4).kwargs(dtype)).sample
    assert out.isfinite().all()


@torch.no_grad()
def test_overflow_in_fp16_names_the_block(make, draw_inputs):
    model = make().half()
    inputs = draw_inputs(model, 4, 4).kwargs(torch.float16)
    assert model(**inputs).sample.isfinite().all()
    model.transformer_blocks[1].ff.conv_point.weight.mul_(1e4)
    with pytest.raises(ValueError, match=r"transformer_blocks\.1: float16"):
        model(**inputs)
    inputs["hidden_states"][0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="patch_embed"):
        model(**inputs)


@torch.no_grad()
def test_the_clip_is_the_models_setting(make, draw_inputs):
    model = make(attention_clip=1e-3)
    inputs = draw_inputs(model, 3, 3).kwargs()
    clipped = model(**inputs).sample
    for block in model.transformer_blocks:
        assert block.attn1.clip == 1e-3
        block.attn1.clip = None
    assert not torch.allclose(model(**inputs).sample, clipped)


@pytest.mark.parametrize("prepared", [False, True])
@torch.no_grad()
def test_the_compiler_sees_one_graph(prepared, make, draw_inputs):
    model = make(interpolation_scale=1.0)
    inputs = draw_inputs(model, 4, 4).kwargs()
    wanted = model(**inputs).sample
    if prepared:
        mask = inputs.pop("encoder_attention_mask")
        inputs["encoder_hidden_states"] = model.prepare_text(inputs["encoder_hidden_states"], mask)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(**inputs).sample, wanted, rtol=1e-4, atol=1e-5)
