"""Text prepared once per prompt gives what the embeddings give."""

from __future__ import annotations

import pytest
import torch

from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.transformers.text_context import TextContext, real_tokens


@pytest.fixture
def model(narrow, shake):
    return shake(SanaTransformer2DModel(**narrow | {"qk_norm": "rms_norm_across_heads"}))


def close(out, wanted):
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_prepared_equals_direct_and_may_be_used_again(model, draw_inputs):
    inputs = draw_inputs(model, 3, 4)
    context = model.prepare_text(inputs.text, inputs.mask)
    for timestep in (900.0, 10.0):
        direct = model(**inputs.kwargs() | {"timestep": timestep}).sample
        assert torch.equal(model(inputs.latent, context, timestep).sample, direct)


@torch.no_grad()
def test_trimmed_equals_untrimmed(model, draw_inputs):
    inputs = draw_inputs(model, 3, 4)
    context = model.prepare_text(inputs.text, inputs.mask)
    assert context.tokens == 9  # of 12 slots; the longest prompt has 9 tokens
    full = model.prepare_text(inputs.text)
    untrimmed = TextContext(full.keys, full.values, inputs.mask.bool())
    close(model(inputs.latent, context, 10.0).sample, model(inputs.latent, untrimmed, 10.0).sample)


@torch.no_grad()
def test_padding_changes_nothing_wherever_it_is(model, draw_inputs):
    inputs = draw_inputs(model, 3, 4)
    short = model.prepare_text(inputs.text[:, :5])
    wanted = model(inputs.latent, short, 10.0).sample
    for slots in ([0, 1, 2, 3, 4], [7, 8, 9, 10, 11], [1, 3, 4, 8, 10]):
        text = torch.full_like(inputs.text, 1e4)
        text[:, slots] = inputs.text[:, :5]
        mask = torch.zeros(2, 12)
        mask[:, slots] = 1
        context = model.prepare_text(text, mask)
        assert context.tokens == 5 and context.mask is None
        close(model(inputs.latent, context, 10.0).sample, wanted)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.bfloat16])
@torch.no_grad()
def test_masks_of_any_dtype_are_alike(dtype, model, draw_inputs):
    inputs = draw_inputs(model, 2, 2)
    wanted = model(**inputs.kwargs()).sample
    inputs.mask = inputs.mask.to(dtype)
    assert torch.equal(model(**inputs.kwargs()).sample, wanted)


def test_a_row_without_real_tokens_reads_all():
    mask = real_tokens(torch.tensor([[0, 0, 0], [1, 0, 0]]), 2, 3)
    assert mask.tolist() == [[True] * 3, [True, False, False]]


@torch.no_grad()
def test_rows_without_real_tokens_stay_finite_in_every_dtype(model, draw_inputs):
    inputs = draw_inputs(model, 2, 2)
    inputs.mask.zero_()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert model.to(dtype)(**inputs.kwargs(dtype)).sample.isfinite().all()


@torch.no_grad()
def test_cat_repeat_and_rows(model, draw_inputs):
    inputs = draw_inputs(model, 2, 2)
    negative = model.prepare_text(inputs.text[:1, :1])
    positive = model.prepare_text(inputs.text, inputs.mask)
    joined = TextContext.cat([negative, positive])
    assert (len(negative), len(positive), len(joined), joined.tokens) == (1, 2, 3, 9)
    latent = torch.randn(3, 32, 2, 2)
    out = model(latent, joined, 10.0).sample
    close(out[:1], model(latent[:1], negative, 10.0).sample)
    close(out[1:], model(latent[1:], positive, 10.0).sample)

    twice = positive.repeat(2)  # a a b b
    latent = torch.randn(4, 32, 2, 2)
    out = model(latent, twice, 10.0).sample
    for rows, row in ((slice(0, 2), [0]), (slice(2, 4), torch.tensor([1]))):
        close(out[rows], model(latent[rows], positive.rows(row).repeat(2), 10.0).sample)


def test_cat_without_padding_needs_no_mask(model, draw_inputs):
    context = model.prepare_text(draw_inputs(model, 2, 2).text)
    assert TextContext.cat([context, context]).mask is None


def test_casting_keeps_the_mask_boolean(model, draw_inputs):
    inputs = draw_inputs(model, 2, 2)
    context = model.prepare_text(inputs.text, inputs.mask).to(dtype=torch.bfloat16)
    assert context.keys[0].dtype == context.values[1].dtype == torch.bfloat16
    assert context.mask.dtype == torch.bool
    assert context.to("meta").mask.is_meta


def test_padding_gets_no_gradient(model, draw_inputs):
    inputs = draw_inputs(model, 2, 2)
    inputs.text.requires_grad_()
    model(**inputs.kwargs()).sample.sum().backward()
    assert torch.equal(inputs.text.grad.any(-1), inputs.mask.bool())


def test_contexts_that_do_not_fit_are_refused(model, narrow, draw_inputs):
    inputs = draw_inputs(model, 2, 2)
    context = model.prepare_text(inputs.text, inputs.mask)
    deep = SanaTransformer2DModel(**narrow | {"num_layers": 3})
    wide = SanaTransformer2DModel(**narrow | {"cross_attention_head_dim": 16})
    with pytest.raises(ValueError, match="blocks, heads, head width"):
        deep(inputs.latent, context, 10.0)
    with pytest.raises(ValueError, match="blocks, heads, head width"):
        wide(inputs.latent, context, 10.0)
    with pytest.raises(ValueError, match="2 rows and the latents 1"):
        model(inputs.latent[:1], context, 10.0)
    with pytest.raises(ValueError, match="holds its own mask"):
        model(inputs.latent, context, 10.0, encoder_attention_mask=inputs.mask)
    with pytest.raises(ValueError, match="different models"):
        TextContext.cat([context, deep.prepare_text(inputs.text)])
    with pytest.raises(ValueError, match="at least one"):
        TextContext.cat([])
    with pytest.raises(ValueError, match="at least one row"):
        model.prepare_text(inputs.text[:, :0])
