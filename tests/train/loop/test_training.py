from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sana_like import AutoencoderDC
from sana_like_train import checkpoint
from sana_like_train.components import load_text_encoder
from sana_like_train.config import ConfigError, TextToImageTask
from sana_like_train.loop import NonFiniteLossError
from sana_like_train.running import export, run
from sana_like_train.tasks.autoencoder import AutoencoderTraining

Write = Callable[[dict[str, Any]], Path]


def _log(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def _plain(recipe: dict[str, Any]) -> dict[str, Any]:
    """Without the terms that keep an autoencoder from a perfect copy."""
    off = {"latent_noise": 0.0, "adversary": None, "perceptual_weight": 0.0, "crop_schedule": []}
    return {**recipe, "task": {**recipe["task"], **off}}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_autoencoder_learns_one_batch(
    precision: str,
    autoencoder_recipe: dict[str, Any],
    write_recipe: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = AutoencoderTraining.make_batch

    def first_batch(self, position):
        return make(self, type(position)(0, 0, 0))

    monkeypatch.setattr(AutoencoderTraining, "make_batch", first_batch)
    changes = ["train.max_steps=120", "train.evaluate_steps=null", "train.log_steps=1"]
    changes += [f"train.precision={precision}", "train.lr=5e-3", "train.sample_steps=null"]
    result = run(write_recipe(_plain(autoencoder_recipe)), changes, runs=tmp_path)
    losses = [line["loss"] for line in _log(result.folder, "train")]
    assert losses[-1] < 0.35 * losses[0]


def test_a_transformer_learns_one_batch(
    flow_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    """With noise and levels fixed too, the velocity is a function the model can learn by heart."""
    from sana_like_train.tasks.text_to_image import TextToImageTraining

    make = TextToImageTraining.make_batch
    changes = ["train.max_steps=150", "train.evaluate_steps=null", "train.log_steps=1"]
    changes += ["train.sample_steps=null", "train.lr=1e-2", "task.contrastive_weight=0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TextToImageTraining, "make_batch", lambda self, p: make(self, type(p)(0, 0, 0))
        )
        result = run(write_recipe(flow_recipe), changes, runs=tmp_path)
    losses = [line["loss"] for line in _log(result.folder, "train")]
    assert losses[-1] < 0.5 * losses[0]


def test_a_run_leaves_logs_samples_measures_and_the_best(
    flow_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    result = run(write_recipe(flow_recipe), runs=tmp_path)
    folder = result.folder
    measures = _log(folder, "held_out")
    assert [line["step"] for line in measures] == [5, 10, 15, 20]
    assert {"flow_loss", "flow_loss_train"} <= set(measures[0])
    best = min(measures, key=lambda line: line["flow_loss"])
    path = checkpoint.find(folder / "checkpoints", "best")
    assert path is not None and path.name == f"step-{best['step']:08d}"
    with Image.open(folder / "samples" / "step-00000020.png") as sheet:
        assert sheet.size == (8 * 32, 32)
    assert list((folder / "tensorboard").iterdir())
    assert (folder / "recipe.yaml").exists()


def test_measures_do_not_depend_on_when_they_are_taken(
    flow_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    recipe = write_recipe(flow_recipe)
    often = run(recipe, ["train.evaluate_steps=2"], runs=tmp_path / "a")
    rarely = run(recipe, ["train.evaluate_steps=20"], runs=tmp_path / "b")
    assert _log(often.folder, "held_out")[-1] == _log(rarely.folder, "held_out")[-1]


def test_a_loss_that_is_not_finite_stops_and_names_the_samples(
    autoencoder_recipe: dict[str, Any],
    write_recipe: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = AutoencoderTraining.make_batch
    names = []

    def spoiled(self, position):
        batch = make(self, position)
        if position.step == 7:
            batch.tensors["pictures"][1] = float("nan")
            names.append(batch.keys[1])
        return batch

    monkeypatch.setattr(AutoencoderTraining, "make_batch", spoiled)
    with pytest.raises(NonFiniteLossError) as caught:
        run(write_recipe(_plain(autoencoder_recipe)), runs=tmp_path)
    assert f"at step 7; samples: {names[0]};" in str(caught.value)
    path = checkpoint.find(tmp_path / "tiny-ae" / "checkpoints")
    assert path is not None and path.name == "step-00000005"


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_saves(
    number: int,
    autoencoder_recipe: dict[str, Any],
    write_recipe: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = AutoencoderTraining.make_batch

    def interrupted(self, position):
        if position.step == 3:
            os.kill(os.getpid(), number)
        return make(self, position)

    monkeypatch.setattr(AutoencoderTraining, "make_batch", interrupted)
    result = run(write_recipe(autoencoder_recipe), runs=tmp_path)
    assert result.status == "interrupted"
    path = checkpoint.find(result.folder / "checkpoints")
    assert path is not None and path.name == "step-00000004"
    assert checkpoint.read(path).state["progress"]["step"] == 4


def test_limits_of_hours_and_samples(
    autoencoder_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    recipe = write_recipe(autoencoder_recipe)
    assert run(recipe, ["train.max_hours=1e-7"], runs=tmp_path / "a").status == "time_up"
    limited = run(recipe, ["train.max_samples=9"], runs=tmp_path / "b")
    assert limited.progress.samples == 12  # three whole batches of four


def test_gradient_accumulation_equals_the_larger_batch(
    autoencoder_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    """Whole pictures on white: both ways see the same samples, so the same mean gradient."""
    recipe = _plain(autoencoder_recipe)
    recipe["task"] |= {"crop": None, "white_background": 1.0}
    path = write_recipe(recipe)
    common = ["train.max_steps=3", "train.evaluate_steps=null", "train.schedule.warmup_steps=0"]
    whole = run(path, [*common, "train.batch_size=4"], runs=tmp_path / "a")
    split = ["train.batch_size=2", "train.gradient_accumulation=2"]
    parts = run(path, [*common, *split], runs=tmp_path / "b")
    assert whole.progress.samples == parts.progress.samples == 12
    weights = []
    for result in (whole, parts):
        found = checkpoint.find(result.folder / "checkpoints")
        assert found is not None
        weights.append(checkpoint.read(found, ("model",)).tensors["model"])
    for name, value in weights[0].items():
        # Adam divides by the gradient's size, so tiny gradients turn rounding into steps.
        assert torch.allclose(value, weights[1][name], atol=3e-4), name


def test_gradient_checkpointing_changes_nothing_but_memory(
    flow_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    path = write_recipe(flow_recipe)
    common = ["train.max_steps=3", "train.evaluate_steps=null", "task.model.dropout=0.0"]
    common += ["train.schedule.warmup_steps=0"]
    plain = run(path, common, runs=tmp_path / "a")
    saving = run(path, [*common, "train.gradient_checkpointing=true"], runs=tmp_path / "b")
    found = [checkpoint.find(r.folder / "checkpoints") for r in (plain, saving)]
    one, other = (checkpoint.read(p, ("model",)).tensors["model"] for p in found if p)
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def test_an_exported_autoencoder_has_the_averaged_weights_and_unit_latents(
    autoencoder_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    result = run(write_recipe(autoencoder_recipe), runs=tmp_path)
    path = export("tiny-ae", tmp_path / "out", runs=tmp_path, which="latest")
    model = AutoencoderDC.from_pretrained(tmp_path / "out")
    averages = checkpoint.read(path, ("ema",)).tensors["ema"]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, averages[name]), name
    assert model.config["scaling_factor"] != 1.0
    assert result.progress.step == 20
    further = {**autoencoder_recipe, "name": "further"}
    further["train"] = {**further["train"], "init_from": str(tmp_path / "out"), "max_steps": 4}
    further["task"] = {**further["task"], "phase": "decoder_refinement"}
    run(write_recipe(further), runs=tmp_path)
    export("further", tmp_path / "further-out", runs=tmp_path, which="latest", int8=True)
    refined = AutoencoderDC.from_pretrained(tmp_path / "further-out", dtype=torch.float32)
    kept = model.encoder.conv_out.weight
    scale = kept.abs().max() / 127
    assert (refined.encoder.conv_out.weight - kept).abs().max() <= scale


def test_an_exported_transformer_makes_pictures(
    flow_recipe: dict[str, Any], write_recipe: Write, tmp_path: Path
) -> None:
    from sana_like_pipelines import SanaPipeline

    run(write_recipe(flow_recipe), runs=tmp_path)
    export("tiny-flow", tmp_path / "out", runs=tmp_path)
    task = TextToImageTask.model_validate(flow_recipe["task"])
    encoder = load_text_encoder(task, None, torch.device("cpu"))
    pipe = SanaPipeline.from_pretrained(
        tmp_path / "out", tokenizer=encoder.tokenizer, text_encoder=encoder.text_encoder.float()
    )
    assert pipe.text_settings == encoder.settings
    picture = pipe("thing 1 , 3d", height=32, width=32, num_inference_steps=2).images[0]
    assert picture.size == (32, 32)


def test_unknown_model_keys_and_weights_of_another_shape_are_refused(
    autoencoder_recipe: dict[str, Any], write_recipe: Write, tiny_autoencoder: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(autoencoder_recipe)
    with pytest.raises(ConfigError, match="did you mean 'latent_channels'"):
        run(recipe, ["task.model.latent_channel=4"], runs=tmp_path)
    changes = [f"train.init_from={tiny_autoencoder}", "task.model.expand_ratio=4.0"]
    with pytest.raises(ConfigError, match=r"expand_ratio is 4\.0"):
        run(recipe, changes, runs=tmp_path)
