"""The ControlNet beyond parity: start, scales, extensions, refusals."""

from __future__ import annotations

import pytest
import torch

from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel

SPRINT = {"qk_norm": "rms_norm_across_heads", "guidance_embeds": True}


@pytest.fixture
def make(narrow, shake):
    """A transformer of four blocks and a ControlNet made of its first two."""

    def make_pair(**changes):
        model = shake(SanaTransformer2DModel(**narrow | {"num_layers": 4} | changes))
        return model, SanaControlNetModel.from_transformer(model, num_layers=2).eval()

    return make_pair


@pytest.mark.parametrize("changes", [{}, SPRINT, {"interpolation_scale": 1.0, "patch_size": 2}])
@torch.no_grad()
def test_a_new_controlnet_changes_nothing(changes, make, draw_inputs):
    model, control = make(**changes)
    inputs = draw_inputs(model, 4, 6).kwargs()
    samples = control(**inputs, controlnet_cond=torch.randn(2, 32, 4, 6)).controlnet_block_samples
    assert not any(sample.any() for sample in samples)
    steered = model(**inputs, controlnet_block_samples=samples).sample
    assert torch.equal(steered, model(**inputs).sample)


@pytest.mark.parametrize("changes", [{}, SPRINT])
def test_a_new_controlnet_can_learn(changes, make, draw_inputs):
    model, control = make(**changes)
    model.requires_grad_(False)
    inputs = draw_inputs(model, 3, 3).kwargs()
    samples = control.train()(**inputs, controlnet_cond=torch.randn(2, 32, 3, 3))[0]
    model(**inputs, controlnet_block_samples=samples).sample.square().mean().backward()
    assert all(layer.weight.grad.any() for layer in control.controlnet_blocks)


@torch.no_grad()
def test_blocks_are_copies_and_not_shared(make):
    model, control = make(**SPRINT)
    own, copied = model.state_dict(), control.state_dict()
    for key in own.keys() & copied.keys():
        assert torch.equal(own[key], copied[key]), key
        assert own[key].data_ptr() != copied[key].data_ptr(), key
    added = {key.split(".")[0] for key in copied.keys() - own.keys()}
    assert added == {"input_block", "controlnet_blocks"}


@torch.no_grad()
def test_scales_weigh_the_residuals(make, shake, draw_inputs):
    _, control = make()
    shake(control)
    inputs = draw_inputs(control, 3, 3).kwargs()
    inputs["controlnet_cond"] = torch.randn(2, 32, 3, 3)
    plain = control(**inputs)[0]
    for scale, wanted in [(0.5, (0.5, 0.5)), ([0.0, 2.0], (0.0, 2.0))]:
        (scaled,) = control(**inputs, conditioning_scale=scale, return_dict=False)
        for sample, whole, factor in zip(scaled, plain, wanted, strict=True):
            torch.testing.assert_close(sample, whole * factor)


@torch.no_grad()
def test_prepared_text_and_checkpointing_change_nothing(make, shake, draw_inputs):
    _, control = make()
    shake(control)
    inputs = draw_inputs(control, 3, 3)
    cond = torch.randn(2, 32, 3, 3)
    plain = control(**inputs.kwargs(), controlnet_cond=cond)[0]
    context = control.prepare_text(inputs.text, inputs.mask)
    prepared = control(inputs.latent, context, inputs.timestep, cond)[0]
    control.enable_gradient_checkpointing()
    with torch.enable_grad():
        checkpointed = control(**inputs.kwargs(), controlnet_cond=cond)[0]
    for index, sample in enumerate(plain):
        assert torch.equal(prepared[index], sample)
        # Without gradients a CPU sums in another order.
        torch.testing.assert_close(checkpointed[index], sample, rtol=1e-4, atol=1e-4)


def test_wrong_arguments_are_refused(make, narrow, draw_inputs):
    model, control = make()
    inputs = draw_inputs(control, 3, 3).kwargs()
    cond = torch.randn(2, 32, 3, 3)
    for wrong, message in [
        ({"controlnet_cond": cond[:, :, :2]}, "must be equal"),
        ({"conditioning_scale": [1.0]}, "one for each"),
        ({"attention_mask": torch.ones(2, 9)}, "attention_mask"),
        ({"guidance": torch.ones(2)}, "guidance_embeds=False"),
    ]:
        with pytest.raises(ValueError, match=message):
            control(**inputs | {"controlnet_cond": cond} | wrong)
    for layers in (0, 4):
        with pytest.raises(ValueError, match="from 1 to 3"):
            SanaControlNetModel.from_transformer(model, num_layers=layers)
