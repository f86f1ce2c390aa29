"""Adapters, ControlNets and fine-tuning from a plain folder of pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sana_like_pipelines import SanaControlNetPipeline, SanaPipeline
from sana_like_train import checkpoint
from sana_like_train.components import load_text_encoder
from sana_like_train.config import ConfigError, TextToImageTask
from sana_like_train.control import edges
from sana_like_train.running import export, run

Write = Callable[[dict[str, Any]], Path]


@pytest.fixture
def base(flow_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path) -> Path:
    """A pipeline folder with all its parts inside."""
    short = ["train.max_steps=2", "train.evaluate_steps=null", "train.sample_steps=null"]
    short.append("train.schedule.warmup_steps=0")
    run(write_recipe(flow_recipe), short, runs=tmp_path / "base-runs")
    folder = tmp_path / "base"
    export("tiny-flow", folder, runs=tmp_path / "base-runs", which="latest")
    task = TextToImageTask.model_validate(flow_recipe["task"])
    encoder = load_text_encoder(task, None, torch.device("cpu"))
    pipe = SanaPipeline.from_pretrained(
        folder, tokenizer=encoder.tokenizer, text_encoder=encoder.text_encoder.float()
    )
    pipe.save_pretrained(folder)
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A plain folder: three shapes, captions beside two of them."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    sizes = [(32, 32), (48, 24), (24, 48), (40, 40), (36, 30)]
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (50 * number, 100, 200)).save(folder / f"{number}.png")
    for number in (0, 1):
        (folder / f"{number}.txt").write_text(f"thing {number}")
    return folder


@pytest.fixture
def tuning_recipe(flow_recipe: dict[str, Any], base: Path, pictures: Path) -> dict[str, Any]:
    data = {**flow_recipe["data"], "source": str(pictures), "caption": "a thing"}
    task = {"kind": "text_to_image", "sample_steps": 2, "evaluate_pictures": 4}
    train = {**flow_recipe["train"], "init_from": str(base), "optimizer": {"kind": "adamw"}}
    return {"name": "tuned", "task": task, "data": data, "train": train}


def _picture(pipe: Any, **arguments: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    out = pipe(
        "a thing",
        height=32,
        width=32,
        num_inference_steps=2,
        generator=generator,
        output_type="latent",
        **arguments,
    )
    return out.images


def test_an_adapter_from_a_plain_folder_of_pictures(
    tuning_recipe: dict[str, Any], base: Path, write_recipe: Write, tmp_path: Path
) -> None:
    tuning_recipe["task"]["lora"] = {"rank": 2, "alpha": 4}
    result = run(write_recipe(tuning_recipe), runs=tmp_path)
    assert result.progress.step == 20
    path = export("tuned", tmp_path / "lora", runs=tmp_path, which="latest")
    names = checkpoint.read(path, ("model",)).tensors["model"]
    assert names and all("lora" in name for name in names)  # the base is not in the checkpoint
    pipe = SanaPipeline.from_pretrained(base)
    before = _picture(pipe)
    report = pipe.load_lora_weights(tmp_path / "lora", "mine")
    assert report
    assert not torch.allclose(_picture(pipe), before, atol=1e-4)
    assert pipe.lora_scales() == {"mine": 1.0}
    pipe.unload_lora_weights()
    assert torch.equal(_picture(pipe), before)


def test_an_adapter_can_be_resumed_and_learns(
    tuning_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    tuning_recipe["task"]["lora"] = {"rank": 4}
    recipe = write_recipe(tuning_recipe)
    changes = ["train.max_steps=60", "train.lr=2e-2", "train.log_steps=1"]
    run(recipe, [*changes, "train.max_samples=40"], runs=tmp_path)
    result = run(recipe, changes, resume=True, runs=tmp_path)
    lines = [json.loads(line) for line in (result.folder / "log.jsonl").read_text().splitlines()]
    measures = [line["flow_loss"] for line in lines if line["kind"] == "held_out"]
    assert measures[-1] < 0.9 * measures[0]


def test_a_controlnet_changes_nothing_until_it_is_trained(
    tuning_recipe: dict[str, Any], base: Path, write_recipe: Write, tmp_path: Path
) -> None:
    tuning_recipe["task"]["control"] = {"num_layers": 1}
    tuning_recipe["train"]["lr"] = 1e-2
    result = run(write_recipe(tuning_recipe), runs=tmp_path)
    path = export("tuned", tmp_path / "control", runs=tmp_path, which="latest")
    names = checkpoint.read(path, ("model",)).tensors["model"]
    assert names and all(name.startswith("controlnet.") for name in names)
    assert result.status == "finished"
    pipe = SanaControlNetPipeline.from_pretrained(base, controlnet=tmp_path / "control")
    control = Image.new("RGB", (32, 32), "white")
    off = _picture(pipe, control_image=control, controlnet_conditioning_scale=0.0)
    plain = _picture(SanaPipeline.from_pretrained(base))
    assert torch.allclose(off, plain, atol=1e-5)
    assert not torch.allclose(_picture(pipe, control_image=control), off, atol=1e-3)


def test_fine_tuning_begins_at_the_given_weights(
    tuning_recipe: dict[str, Any], base: Path, write_recipe: Write, tmp_path: Path
) -> None:
    from sana_like import SanaTransformer2DModel

    tuning_recipe["train"]["lr"] = 1e-8
    run(write_recipe(tuning_recipe), ["train.max_steps=1", *_calm()], runs=tmp_path)
    export("tuned", tmp_path / "out", runs=tmp_path, which="latest")
    before = SanaTransformer2DModel.from_pretrained(base, subfolder="transformer")
    after = SanaTransformer2DModel.from_pretrained(tmp_path / "out", subfolder="transformer")
    for one, other in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    pipe = SanaPipeline.from_pretrained(tmp_path / "out", text_encoder=None, tokenizer=None)
    assert pipe.text_settings == SanaPipeline.from_pretrained(base).text_settings


def _calm() -> list[str]:
    return ["train.schedule.warmup_steps=0", "train.evaluate_steps=null"]


def test_impossible_combinations_are_refused(
    tuning_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    recipe = write_recipe(tuning_recipe)
    with pytest.raises(ConfigError, match=r"train\.init_from"):
        run(recipe, ["task.lora={}", "train.init_from=null"], runs=tmp_path)
    with pytest.raises(ConfigError, match="exclude each other"):
        run(recipe, ["task.lora={}", "task.control={}"], runs=tmp_path)
    with pytest.raises(ConfigError, match=r"3 pictures have no caption, first '2'"):
        run(recipe, ["data.caption=null"], runs=tmp_path)
    with pytest.raises(ConfigError, match="flow_loss_held_out"):
        run(recipe, ["task.metric=flow_loss_held_out"], runs=tmp_path)
    with pytest.raises(ValueError, match="num_layers=5"):
        run(recipe, ["task.control.num_layers=5"], runs=tmp_path)


def test_edges_are_white_on_black() -> None:
    picture = -torch.ones(1, 3, 9, 9)
    assert torch.equal(edges(picture), picture)
    picture[..., 5:] = 1.0
    out = edges(picture)
    assert out.shape == picture.shape
    assert (out[..., 4:6] == 1).all()
    assert (out[..., :4] == -1).all() and (out[..., 6:] == -1).all()
    assert torch.allclose(edges(picture.mT), out.mT)
