"""Control pictures: several nets, scales, parts of the run."""

from __future__ import annotations

import pytest
import torch

from sana_like import SanaControlNetModel
from sana_like_pipelines import SanaControlNetPipeline

CLOSE = 1e-4


def latents_of(pipe, *prompt, **arguments):
    return pipe(*prompt, output_type="latent", **arguments).images


@pytest.fixture
def control():
    return torch.rand(1, 3, 32, 32)


@pytest.fixture
def pair(controlnet):
    """A pipeline with two nets of different depth."""
    second = SanaControlNetModel(**dict(controlnet.controlnet.config) | {"num_layers": 1})
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    pipe = SanaControlNetPipeline.from_pipe(
        controlnet, controlnet=[controlnet.controlnet, second.eval()]
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_control_and_its_scale_have_an_effect(controlnet, control, quick):
    def run(scale, picture=control):
        return latents_of(
            controlnet, "a", control_image=picture, controlnet_conditioning_scale=scale,
            generator=1, **quick,
        )  # fmt: skip

    assert (run(1.0) - run(0.0)).abs().max() > 0.01
    assert (run(1.0) - run(0.5)).abs().max() > 1e-3
    assert (run(1.0) - run(1.0, 1 - control)).abs().max() > 1e-3


def test_scale_zero_is_the_plain_model(controlnet, sana, control, quick):
    controlled = latents_of(
        controlnet, "a", control_image=control, controlnet_conditioning_scale=0.0, generator=1,
        **quick,
    )  # fmt: skip
    assert torch.equal(controlled, latents_of(sana, "a", generator=1, **quick))


def test_part_of_the_run(controlnet, control, quick):
    net, calls = controlnet.controlnet, []
    forward = net.forward
    net.forward = lambda **k: calls.append(float(k["timestep"])) or forward(**k)
    arguments = quick | {"num_inference_steps": 8, "control_image": control}
    controlnet("a", control_guidance_start=0.25, control_guidance_end=0.75, **arguments)
    assert len(calls) == 4
    calls.clear()
    controlnet("a", **arguments)
    assert len(calls) == 8


def test_timestep_scale_reaches_the_control(controlnet, control, quick):
    """diffusers applies it to the transformer only in its other pipelines, here to neither."""
    told = {}
    for name in ("transformer", "controlnet"):
        model = getattr(controlnet, name)
        forward = model.forward

        def watch(*args, name=name, forward=forward, **kwargs):
            told.setdefault(name, float(kwargs["timestep"]))
            return forward(*args, **kwargs)

        model.forward = watch
    config = controlnet.transformer.config
    controlnet.transformer._internal_dict = type(config)(config | {"timestep_scale": 0.5})
    controlnet("a", control_image=control, **quick)
    assert told["controlnet"] == told["transformer"] == pytest.approx(0.5 * 999.67, rel=1e-3)


class TestSeveral:
    def test_residuals_add_up(self, controlnet, pair, control, quick):
        first = latents_of(controlnet, "a", control_image=control, generator=1, **quick)
        arguments = quick | {"generator": 1, "control_image": [control, 1 - control]}
        only_first = latents_of(pair, "a", controlnet_conditioning_scale=[1.0, 0.0], **arguments)
        both = latents_of(pair, "a", **arguments)
        torch.testing.assert_close(only_first, first, atol=CLOSE, rtol=0)
        assert (both - first).abs().max() > 1e-3

    def test_same_net_twice_at_half_scale_is_the_net(self, controlnet, control, quick):
        twice = SanaControlNetPipeline.from_pipe(controlnet, controlnet=[controlnet.controlnet] * 2)
        twice.set_progress_bar_config(disable=True)
        got = latents_of(
            twice, "a", control_image=[control, control], controlnet_conditioning_scale=[0.5, 0.5],
            generator=1, **quick,
        )  # fmt: skip
        expected = latents_of(controlnet, "a", control_image=control, generator=1, **quick)
        torch.testing.assert_close(got, expected, atol=CLOSE, rtol=0)

    def test_own_start_and_end(self, pair, control, quick):
        counts = [0, 0]
        for index, net in enumerate(pair.controlnets):
            forward = net.forward

            def watch(index=index, forward=forward, **kwargs):
                counts[index] += 1
                return forward(**kwargs)

            net.forward = watch
        pair(
            "a", control_image=[control, control], control_guidance_start=[0.0, 0.5],
            control_guidance_end=[0.5, 1.0], **quick | {"num_inference_steps": 4},
        )  # fmt: skip
        assert counts == [2, 2]

    def test_travel_with_the_folder(self, pair, control, tmp_path, quick):
        import diffusers

        pair.save_pretrained(tmp_path)
        again = SanaControlNetPipeline.from_pretrained(tmp_path)
        again.set_progress_bar_config(disable=True)
        assert len(again.controlnets) == 2
        arguments = quick | {"generator": 1, "control_image": [control, 1 - control]}
        torch.testing.assert_close(
            latents_of(again, "a", **arguments), latents_of(pair, "a", **arguments),
            atol=CLOSE, rtol=0,
        )  # fmt: skip
        stock = diffusers.SanaControlNetPipeline.from_pretrained(tmp_path)
        assert stock.controlnet.config.num_layers == 2, "diffusers takes the first net"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"control_image": torch.rand(1, 3, 32, 32)}, "each of 2 ControlNets"),
            ({"control_image": [torch.rand(1, 3, 32, 32)]}, "each of 2 ControlNets, got 1"),
            ({"controlnet_conditioning_scale": [1.0]}, "1 items for 2 ControlNets"),
            ({"control_guidance_start": [0.0, 0.1, 0.2]}, "3 items for 2"),
            ({"control_guidance_start": 0.8, "control_guidance_end": 0.2}, "start <= end"),
        ],
    )
    def test_refusals(self, pair, control, quick, arguments, message):
        given = {"control_image": [control, control]} | arguments
        with pytest.raises(ValueError, match=message):
            pair("a", **given, **quick)


def test_pictures_of_a_batch_do_not_meet(controlnet, quick):
    controls = torch.rand(2, 3, 32, 32)
    batch = latents_of(
        controlnet, ["a", "b"], control_image=controls, num_images_per_prompt=2,
        generator=[1, 2, 3, 4], pag_scale=1.0, **quick,
    )  # fmt: skip
    alone = latents_of(
        controlnet, "b", control_image=controls[1], generator=[3], pag_scale=1.0, **quick
    )
    torch.testing.assert_close(batch[2], alone[0], atol=CLOSE, rtol=0)


def test_size_of_the_control_is_the_default(controlnet, quick):
    arguments = quick | {"height": None, "width": None}
    picture = controlnet("a", control_image=torch.rand(1, 3, 30, 41), **arguments).images[0]
    assert picture.size == (41, 30)


def test_plain_folder_with_a_net_given(saved, controlnet, control, quick):
    pipe = SanaControlNetPipeline.from_pretrained(
        saved("sana").folder, controlnet=saved("controlnet").folder / "controlnet"
    )
    pipe.set_progress_bar_config(disable=True)
    torch.testing.assert_close(
        latents_of(pipe, "a", control_image=control, generator=1, **quick),
        latents_of(controlnet, "a", control_image=control, generator=1, **quick),
        atol=CLOSE, rtol=0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="controlnet"):
        SanaControlNetPipeline.from_pretrained(saved("sana").folder)


def test_net_of_another_size_is_refused(controlnet):
    other = SanaControlNetModel(**dict(controlnet.controlnet.config) | {"caption_channels": 8})
    with pytest.raises(ValueError, match="caption_channels"):
        SanaControlNetPipeline.from_pipe(controlnet, controlnet=other)
