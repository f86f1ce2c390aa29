from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from sana_like import FlowDPMSolverScheduler, SCMScheduler
from sana_like_app import generation
from sana_like_app.request import PictureRequest
from sana_like_app.setup import Placement, check_arguments, settings_of

CUDA = torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("offload", "method", "options"),
    [
        ("model", "enable_model_cpu_offload", {"device": CUDA}),
        ("sequential", "enable_sequential_cpu_offload", {"device": CUDA}),
    ],
)
def test_offload_goes_to_the_chosen_device(
    offload: str, method: str, options: dict[str, Any]
) -> None:
    pipe = Mock()
    generation._offload(pipe, Placement(device=CUDA, dtype=torch.bfloat16, offload=offload))
    getattr(pipe, method).assert_called_once_with(**options)
    assert len(pipe.method_calls) == 1


def test_group_offload_and_none() -> None:
    pipe = Mock()
    generation._offload(pipe, Placement(device=CUDA, dtype=torch.float32))
    assert not pipe.method_calls
    generation._offload(pipe, Placement(device=CUDA, dtype=torch.float32, offload="group"))
    pipe.enable_group_offload.assert_called_once_with(CUDA)


def test_only_what_is_asked_for_becomes_an_argument() -> None:
    request = PictureRequest(prompts=("x",), seed=1, steps=3, pag_scale=0.0, negative_prompt="")
    assert settings_of(request) == {
        "num_inference_steps": 3, "pag_scale": 0.0, "negative_prompt": ""
    }  # fmt: skip


def test_arguments_that_a_pipeline_lacks_are_named_by_their_option() -> None:
    check_arguments("SanaPipeline", ["pag_scale", "num_inference_steps"])
    with pytest.raises(ValueError, match="--control-scale"):
        check_arguments("SanaPipeline", ["controlnet_conditioning_scale"])
    with pytest.raises(ValueError, match="--negative-prompt"):
        check_arguments("SanaSprintPipeline", ["negative_prompt"])


@pytest.mark.parametrize("name", ["flow-dpm", "flow-euler", "flow-heun"])
def test_another_sampler_keeps_the_settings_of_the_models(name: str) -> None:
    current = FlowDPMSolverScheduler(flow_shift=5.0, num_train_timesteps=500, solver_order=3)
    chosen = generation._scheduler(name, current)
    assert chosen.config.num_train_timesteps == 500
    assert chosen.config.get("flow_shift", chosen.config.get("shift")) == 5.0
    assert chosen.config.get("solver_order", 3) == 3


def test_a_sampler_of_another_kind_is_not_replaced() -> None:
    with pytest.raises(ValueError, match="SCMScheduler, which --scheduler cannot replace"):
        generation._scheduler("flow-euler", SCMScheduler())
