"""Tasks on clips: they learn, go on exactly, and leave what pipelines load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sana_like import AutoencoderDC, AutoencoderDCVideo, SanaTransformer2DModel
from sana_like.weights import hub
from sana_like_train import checkpoint
from sana_like_train.building import build_task
from sana_like_train.components import load_text_encoder
from sana_like_train.config import ConfigError, Recipe, TextToVideoTask
from sana_like_train.running import export, run
from sana_like_train.tasks.base import Position
from sana_like_train.tasks.video_autoencoder import VideoAutoencoderTraining

Write = Callable[[dict[str, Any]], Path]
KINDS = ["video_autoencoder_recipe", "video_recipe", "chunk_recipe", "pairs_recipe",
         "forcing_recipe"]  # fmt: skip


def _log(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def _weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    path = checkpoint.find(folder / "checkpoints")
    assert path is not None
    return checkpoint.read(path).tensors


def _task(recipe: dict[str, Any], **task: Any) -> Any:
    changed = {**recipe, "task": {**recipe["task"], **task}}
    return build_task(Recipe.model_validate(changed))


@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_bit_exact_and_every_measure_is_taken(
    kind: str, request: pytest.FixtureRequest, write_recipe: Write, tmp_path: Path
) -> None:
    recipe = write_recipe(request.getfixturevalue(kind))
    whole = run(recipe, runs=tmp_path / "whole")
    first = run(recipe, ["train.max_samples=13"], runs=tmp_path / "parts")
    assert 3 <= first.progress.step <= 8
    second = run(recipe, resume=True, runs=tmp_path / "parts")
    assert whole.status == second.status == "finished"
    one, other = _weights(whole.folder), _weights(second.folder)
    assert one.keys() == other.keys()
    for group, tensors in one.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, other[group][name]), f"{group}: {name}"
    measures = _log(whole.folder, "held_out")
    assert [line["step"] for line in measures] == [5, 10, 12]
    assert {"psnr", "flow_loss", "pair_loss", "distance_end"} & set(measures[0])
    assert (whole.folder / "samples" / "step-00000012.png").exists()


def test_an_autoencoder_learns_motion_with_its_picture_weights_frozen(
    video_autoencoder_recipe: dict[str, Any],
    write_recipe: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time is halved; two clips are learned by the layers over time alone."""
    monkeypatch.setattr(hub, "ZOO", tmp_path / "zoo")
    config = dict(video_autoencoder_recipe["task"]["model"])
    temporal = {key: config.pop(key) for key in list(config) if "temporal" in key}
    config = {k: tuple(map(tuple, v)) if "scales" in k else v for k, v in config.items()}
    config |= {
        "encoder_layers_per_block": (0, 0, 0, 1, 1),
        "decoder_layers_per_block": (0, 0, 0, 1, 1),
        "encoder_block_out_channels": (8, 16, 16, 16, 16),
        "decoder_block_out_channels": (8, 16, 16, 16, 16),
        "encoder_qkv_multiscales": ((),) * 5,
        "decoder_qkv_multiscales": ((),) * 5,
    }
    torch.manual_seed(0)
    image = AutoencoderDC(**config)
    image.save_pretrained(tmp_path / "zoo" / "tiny-ae")
    recipe = video_autoencoder_recipe
    recipe["task"] |= {
        "model": {k: [0, 0, 0, 1, 1] for k in temporal if "layers" in k} | {"temporal_stages": [3]},
        "image_autoencoder": "tiny-ae",
        "trainable": None,
        "crop": None,
        "crop_schedule": [],
        "adversary": None,
    }
    recipe["data"]["source"] = None
    make = VideoAutoencoderTraining.make_batch
    monkeypatch.setattr(
        VideoAutoencoderTraining, "make_batch", lambda self, p: make(self, type(p)(0, 0, 0))
    )
    changes = ["train.max_steps=120", "train.evaluate_steps=null", "train.log_steps=1"]
    changes += ["train.sample_steps=null", "train.lr=1e-2"]
    result = run(write_recipe(recipe), changes, runs=tmp_path)
    losses = [line["loss"] for line in _log(result.folder, "train")]
    assert losses[-1] < 0.7 * losses[0]
    export("tiny-vae", tmp_path / "out", runs=tmp_path, which="latest", int8=True)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["image_weights"] == "tiny-ae" and written["scaling_factor"] != 1.0
    loaded = AutoencoderDCVideo.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in image.state_dict().items())
    size = sum(file.stat().st_size for file in (tmp_path / "out").glob("*.safetensors"))
    whole = sum(file.stat().st_size for file in (tmp_path / "zoo" / "tiny-ae").glob("*.safet*"))
    assert size < whole / 2


def test_clips_from_text_are_learned_in_the_loop(
    video_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    video_recipe["data"]["source"] = None  # two real clips alone
    changes = ["train.max_steps=150", "train.evaluate_steps=30", "train.lr=1e-2"]
    changes += ["task.pictures_every=0", "train.sample_steps=null", "train.batch_size=4"]
    result = run(write_recipe(video_recipe), changes, runs=tmp_path)
    measures = [line["flow_loss"] for line in _log(result.folder, "held_out")]
    assert measures[-1] < 0.8 * measures[0]


def test_batches_of_pictures_come_between_and_levels_are_as_told(
    video_recipe: dict[str, Any], chunk_recipe: dict[str, Any]
) -> None:
    task = _task(video_recipe, per_frame=0.5, first_frame=0.5, caption_dropout=0.0)
    batches = [task.make_batch(Position(step, step, 0)) for step in range(30)]
    frames = [batch.tensors["latents"].shape[2] for batch in batches]
    assert frames == [4, 4, 1] * 10
    assert [len(batch.keys) for batch in batches[:3]] == [2, 2, 4]
    stills = [key for batch in batches[2::3] for key in batch.keys]
    assert sorted(stills[:16]) == sorted(set(stills))[:16]  # each once before any twice
    sigmas = torch.cat([b.tensors["sigmas"] for b in batches if b.tensors["sigmas"].shape[1] == 4])
    given, alike = sigmas[:, 0] == 0, (sigmas[:, 1:] == sigmas[:, 1:2]).all(dim=1)
    assert 8 < int(given.sum()) < 32 and 8 < int(alike.sum()) < 32
    again = task.make_batch(Position(4, 4, 0)).tensors
    assert all(torch.equal(again[key], value) for key, value in batches[4].tensors.items())

    chunks = _task(chunk_recipe, per_frame=1.0, first_frame=0.0, pictures_every=0)
    for step in range(20):
        tensors = chunks.make_batch(Position(step, step, 0)).tensors
        sigmas = tensors["sigmas"]
        assert torch.equal(sigmas[:, 0], sigmas[:, 1]) and torch.equal(sigmas[:, 2], sigmas[:, 3])
        assert tensors["clean_past"] or (sigmas.diff(dim=1) >= 0).all()


def test_the_student_steps_more_rarely_than_the_critic(
    forcing_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    forcing_recipe["train"] |= {"checkpoint_steps": 1, "keep_last": 9, "evaluate_steps": None}
    result = run(write_recipe(forcing_recipe), ["train.max_steps=4"], runs=tmp_path)
    folders = sorted((result.folder / "checkpoints").glob("step-*"))
    one, two, three = (checkpoint.read(folder).tensors for folder in folders[:3])
    name = "model.transformer_blocks.0.attn1.to_q.weight"
    assert torch.equal(one["model"][name], two["model"][name])
    assert not torch.equal(two["model"][name], three["model"][name])
    assert not torch.equal(one["critic"][name], two["critic"][name])
    assert not any(key.startswith("teacher") for key in one["model"])


def test_a_video_model_begins_as_an_image_model(
    video_recipe: dict[str, Any], tmp_path: Path
) -> None:
    config = {k: v for k, v in video_recipe["task"]["model"].items() if k != "patch_size"}
    torch.manual_seed(7)
    image = SanaTransformer2DModel(**config)
    image.save_pretrained(tmp_path / "image")
    task = _task(video_recipe, image_model=str(tmp_path / "image"), model={})
    mine = dict(task.exported.named_parameters())
    assert torch.equal(mine["proj_out.weight"], image.proj_out.weight)
    with pytest.raises(ConfigError, match="did you mean 'num_layers'"):
        _task(video_recipe, image_model=str(tmp_path / "image"), model={"num_layer": 1})
    with pytest.raises(ConfigError, match="exceeds the 2 blocks"):
        _task(video_recipe, image_model=str(tmp_path / "image"), model={"num_layers": 3})


def test_exported_models_make_clips_and_streams(
    video_recipe: dict[str, Any], forcing_recipe: dict[str, Any], tmp_path: Path
) -> None:
    from sana_like_pipelines import SanaLongVideoPipeline, SanaVideoPipeline

    task = TextToVideoTask.model_validate(video_recipe["task"])
    encoder = load_text_encoder(task, None, torch.device("cpu"))
    parts = {"tokenizer": encoder.tokenizer, "text_encoder": encoder.text_encoder.float()}
    _task(video_recipe).export(tmp_path / "clips")
    pipe = SanaVideoPipeline.from_pretrained(tmp_path / "clips", **parts)
    assert (pipe.trained_for.frames, pipe.rate) == (4, 8.0)
    made = pipe("thing 1 , 3d", num_inference_steps=2, output_type="pt").frames
    assert made.shape[-2:] == (32, 32)
    _task(forcing_recipe).export(tmp_path / "long", int8=True)
    long = SanaLongVideoPipeline.from_pretrained(tmp_path / "long", **parts)
    assert long.trained_for.levels == (1.0, 0.5) and long.trained_for.chunk == 2
    stream = long.stream("thing 1 , 3d", frames=7, output_type="pt")
    assert len(list(stream)) == 7


def test_what_cannot_be_trained_is_refused(
    video_recipe: dict[str, Any],
    pairs_recipe: dict[str, Any],
    forcing_recipe: dict[str, Any],
    autoencoder_recipe: dict[str, Any],
    write_recipe: Write,
    tmp_path: Path,
) -> None:
    for recipe, change, message in (
        (video_recipe, "data={}", r"give data\.source \(pictures\), data\.clips, or both"),
        (video_recipe, "task.model={}", "image_model|init_from"),
        (video_recipe, "data.resolution=36", "multiples of 8"),
        (video_recipe, "task.metric=loss", "measured are flow_loss, flow_loss_train"),
        (pairs_recipe, "train.init_from=null", "the stage before"),
        (pairs_recipe, "task.levels=[0.9, 0.5]", "must fall from 1"),
        (forcing_recipe, "task.windows=[[5, 2]]", "rising steps from 0"),
        (autoencoder_recipe, "data.clips=x", "data.clips is for tasks on clips"),
        (autoencoder_recipe, "data.source=null", "data.source is missing"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(write_recipe(recipe), [change], runs=tmp_path)
    nothing = ["data.clips=null", "task.clips.drawn=0", "task.pictures_every=0"]
    with pytest.raises(ConfigError, match="no clip is left"):
        run(write_recipe(video_recipe), nothing, runs=tmp_path)
