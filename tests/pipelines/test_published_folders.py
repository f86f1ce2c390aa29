"""Folders that diffusers saved load here, and ours load there; both make the same pictures."""

from __future__ import annotations

import json

import diffusers
import numpy as np
import pytest
import torch

from sana_like import FlowDPMSolverScheduler
from sana_like.schedulers import from_published
from sana_like_pipelines import SanaControlNetPipeline, SanaPipeline, SanaSprintPipeline

PROMPTS = ["a red cat", "two blue dogs on a Table"]


def levels(pictures: np.ndarray) -> np.ndarray:
    """8-bit levels, as a file would hold them."""
    return (pictures * 255).round()


def truncating(pipe):
    """diffusers tells the model whole timesteps; the option does the same."""
    pipe.scheduler = FlowDPMSolverScheduler.from_config(
        pipe.scheduler.config, truncate_timesteps=True
    )
    return pipe


def assert_same(ours: np.ndarray, theirs: np.ndarray, tolerance: int = 2) -> None:
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.05, "the pictures are too flat to tell anything"
    assert np.abs(levels(ours) - levels(theirs)).max() <= tolerance


@pytest.mark.parametrize("guidance_scale", [1.0, 4.5])
def test_folder_of_diffusers_makes_the_same_pictures(saved, sana, quick, guidance_scale):
    start = torch.randn(2, 4, 16, 16)
    arguments = quick | {"guidance_scale": guidance_scale, "output_type": "np"}
    theirs = (
        saved("sana")
        .stock(
            PROMPTS,
            negative_prompt="ugly",
            latents=start,
            use_resolution_binning=False,
            **arguments,
        )
        .images
    )
    ours = truncating(sana)(PROMPTS, negative_prompt="ugly", latents=start, **arguments).images
    assert_same(ours, theirs)


def test_same_generator_gives_the_same_picture(saved, sana, quick):
    arguments = quick | {"output_type": "np", "num_inference_steps": 4}
    theirs = saved("sana").stock(
        PROMPTS, generator=torch.Generator().manual_seed(5), use_resolution_binning=False,
        **arguments,
    ).images  # fmt: skip
    pipe = truncating(sana)
    ours = pipe(PROMPTS, generator=torch.Generator().manual_seed(5), **arguments).images
    assert_same(ours, theirs)


@pytest.mark.parametrize("kind", ["dpm", "euler"])
def test_the_documented_way_to_diffusers_numbers(tmp_path, saved, quick, kind):
    stock = diffusers.SanaPipeline(**saved("sana").stock.components)
    stock.set_progress_bar_config(disable=True)
    if kind == "euler":
        stock.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    stock.save_pretrained(tmp_path)
    start = torch.randn(2, 4, 16, 16)
    arguments = quick | {"output_type": "np", "latents": start, "num_inference_steps": 5}
    theirs = stock(PROMPTS, use_resolution_binning=False, **arguments).images
    pipe = SanaPipeline.from_pretrained(tmp_path)
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = from_published(pipe.scheduler.published_config(), compatible=True)
    assert_same(pipe(PROMPTS, **arguments).images, theirs)


def test_published_instruction_is_the_default(saved, sana):
    """No text argument at all: the long instruction and 300 positions on both sides."""
    start = torch.randn(1, 4, 16, 16)
    arguments = {"latents": start, "num_inference_steps": 2, "output_type": "np"}
    size = {"height": 32, "width": 32}
    stock = saved("sana").stock
    theirs = stock("a red cat", use_resolution_binning=False, **size, **arguments).images
    ours = truncating(sana)("a red cat", **size, **arguments).images
    assert_same(ours, theirs)


@pytest.mark.parametrize("steps", [2, 4])
def test_sprint_folder_of_diffusers(saved, sprint, quick, steps):
    arguments = quick | {"output_type": "np", "num_inference_steps": steps}
    theirs = (
        saved("sprint")
        .stock(
            PROMPTS,
            generator=torch.Generator().manual_seed(5),
            use_resolution_binning=False,
            **arguments | ({"intermediate_timesteps": None} if steps != 2 else {}),
        )
        .images
    )
    ours = sprint(PROMPTS, generator=torch.Generator().manual_seed(5), **arguments).images
    assert_same(ours, theirs)


def test_controlnet_folder_of_diffusers(saved, controlnet, quick):
    start, control = torch.randn(1, 4, 16, 16), torch.rand(1, 3, 32, 32)
    arguments = quick | {"output_type": "np", "latents": start}
    arguments["controlnet_conditioning_scale"] = 0.7
    # diffusers hands tensors on as they are, ours are in [0, 1].
    theirs = (
        saved("controlnet")
        .stock(
            PROMPTS[:1], control_image=control * 2 - 1, use_resolution_binning=False, **arguments
        )
        .images
    )
    ours = truncating(controlnet)(PROMPTS[0], control_image=control, **arguments).images
    assert_same(ours, theirs)
    without = controlnet(
        PROMPTS[0], control_image=control, **arguments | {"controlnet_conditioning_scale": 0.0}
    ).images
    assert np.abs(levels(ours) - levels(without)).max() > 2, "the control changes nothing"


@pytest.mark.parametrize(
    ("kind", "ours_class", "theirs_class"),
    [
        ("sana", SanaPipeline, diffusers.SanaPipeline),
        ("sprint", SanaSprintPipeline, diffusers.SanaSprintPipeline),
        ("controlnet", SanaControlNetPipeline, diffusers.SanaControlNetPipeline),
    ],
)
def test_our_folder_loads_in_diffusers(saved, tmp_path, quick, kind, ours_class, theirs_class):
    ours = ours_class.from_pretrained(saved(kind).folder)
    ours.save_pretrained(tmp_path)
    index = json.loads((tmp_path / "model_index.json").read_text())
    before = json.loads((saved(kind).folder / "model_index.json").read_text())
    assert {key: tuple(value) for key, value in index.items() if key[0] != "_"} == {
        key: tuple(value) for key, value in before.items() if key[0] != "_"
    }
    assert index["_class_name"] == theirs_class.__name__
    reloaded = theirs_class.from_pretrained(tmp_path)
    reloaded.set_progress_bar_config(disable=True)
    arguments = quick | {"output_type": "np", "latents": torch.randn(1, 4, 16, 16)}
    arguments["use_resolution_binning"] = False
    if kind == "sprint":
        arguments["num_inference_steps"] = 2
    if kind == "controlnet":
        arguments["control_image"] = torch.rand(1, 3, 32, 32)
    expected = (
        saved(kind).stock(["a cat"], generator=torch.Generator().manual_seed(1), **arguments).images
    )
    got = reloaded(["a cat"], generator=torch.Generator().manual_seed(1), **arguments).images
    assert_same(got, expected, tolerance=1)
    for name in ("transformer", "vae"):
        old, new = getattr(saved(kind).stock, name), getattr(reloaded, name)
        assert old.state_dict().keys() == new.state_dict().keys()


def test_saved_and_loaded_here_is_the_same(sana, tmp_path, quick):
    sana.save_pretrained(tmp_path, max_shard_size="20KB")
    assert list((tmp_path / "transformer").glob("*-of-*.safetensors")), "expected shards"
    again = SanaPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    arguments = quick | {"generator": 3, "output_type": "np"}
    # Shards put the text encoder's weights elsewhere in memory, and products may then round anew.
    assert_same(again("a cat", **arguments).images, sana("a cat", **arguments).images, tolerance=1)
