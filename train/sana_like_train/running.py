"""From a recipe to a run: builds the task, trains it, exports it."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.folders import user_data
from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like_train import checkpoint
from sana_like_train.components import pipeline_index
from sana_like_train.config import AutoencoderTask, ConfigError, LoRA, Recipe
from sana_like_train.exporting import ADAPTER
from sana_like_train.loop import Result, Trainer
from sana_like_train.reading import dump, resolve
from sana_like_train.tasks.autoencoder import AutoencoderTraining
from sana_like_train.tasks.base import TrainingTask, derived_seed
from sana_like_train.tasks.text_to_image import TextToImageTraining

logger = logging.getLogger(__name__)


def runs_folder() -> Path:
    """Where runs live unless told otherwise: in the user's data folder."""
    return user_data() / "runs"


def run(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    runs: Path | None = None,
) -> Result:
    """Trains a recipe.

    Args:
        recipe: name of a recipe of the package, or the path of a YAML file.
        overrides: `section.key=value`.
        resume: continue from the newest checkpoint of the run of that name.
        runs: folder of all runs; the user's data folder if none.

    Returns:
        How the session ended, with the run's folder.

    Raises:
        ConfigError: the recipe cannot be used, or a run of that name exists and `resume` is off.
        CheckpointError: the checkpoint to resume is damaged or of another model.
        NonFiniteLossError: training diverged; the message names the samples.
    """
    resolved = resolve(recipe, list(overrides))
    folder = (runs or runs_folder()) / resolved.name
    latest = checkpoint.find(folder / "checkpoints")
    if latest and not resume:
        raise ConfigError(
            f"the run {resolved.name!r} has checkpoints in {folder}; continue it with --resume, "
            "or choose another name (name=...), or remove that folder"
        )
    if resume and not latest:
        raise ConfigError(f"there is no checkpoint to resume in {folder}; start without --resume")
    task = build_task(resolved)
    trainer = Trainer(resolved, task, folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(dump(resolved), encoding="utf-8")
    if latest:
        _tell_changes(latest, resolved)
        trainer.resume(latest)
    return trainer.fit()


def export(
    name: str, folder: Path, *, which: str = "best", runs: Path | None = None, int8: bool = False
) -> Path:
    """Writes the averaged weights of a run's checkpoint as a model folder.

    Args:
        name: of the run, or its folder.
        folder: to write.
        which: `best` or `latest`.
        runs: folder of all runs; the user's data folder if none.
        int8: store weights as int8 with a scale per output channel.

    Returns:
        The checkpoint that was exported.

    Raises:
        CheckpointError: the run has no such checkpoint.
    """
    base = Path(name) if Path(name).is_dir() else (runs or runs_folder()) / name
    path = checkpoint.find(base / "checkpoints", which)
    if path is None:
        raise checkpoint.CheckpointError(f"{base} has no {which} checkpoint")
    recipe = resolve(path / "recipe.yaml", ["train.precision=fp32"])
    trainer = Trainer(recipe, build_task(recipe), base)
    trainer.resume(path)
    trainer.with_averages(lambda: trainer.task.export(folder, int8=int8))
    return path


def build_task(recipe: Recipe) -> TrainingTask:
    """The task of a recipe with its model, initialised from the seed or from given weights.

    Raises:
        ConfigError: unknown model keys, with the closest legal one.
    """
    torch.manual_seed(derived_seed(recipe.train.seed, "initialisation"))
    if isinstance(recipe.task, AutoencoderTask):
        model = build_model(AutoencoderDC, recipe.task.model, recipe.train.init_from)
        _checkpointing(model, recipe)
        return AutoencoderTraining(recipe, model)
    model = build_model(SanaTransformer2DModel, recipe.task.model, _transformer_source(recipe))
    _checkpointing(model, recipe)
    controlnet = None
    if recipe.task.lora is not None:
        _add_lora(model, recipe.task.lora)
    if recipe.task.control is not None:
        controlnet = SanaControlNetModel.from_transformer(model, recipe.task.control.num_layers)
        _checkpointing(controlnet, recipe)
        model.requires_grad_(False).eval()
    device = pick_device(recipe.train.device)
    return TextToImageTraining(recipe, model, controlnet, device)


def _tell_changes(path: Path, recipe: Recipe) -> None:
    """Logs what differs from the recipe that a checkpoint was written with."""
    before = (path / "recipe.yaml").read_text(encoding="utf-8").splitlines()
    lines = difflib.unified_diff(before, dump(recipe).splitlines(), lineterm="", n=0)
    changes = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    if changes:
        logger.warning("the recipe has changed since %s: %s", path.name, "; ".join(changes))


def pick_device(name: str) -> torch.device:
    """The device that a recipe's `train.device` means; per process under a launcher."""
    if name == "cpu":
        return torch.device("cpu")
    from accelerate import PartialState

    return PartialState().device


def _transformer_source(recipe: Recipe) -> str | None:
    """`train.init_from`, or the transformer inside it where that is a pipeline."""
    source = recipe.train.init_from
    index = pipeline_index(source)
    return source if index is None else str(index.folder / "transformer")


def _add_lora(model: SanaTransformer2DModel, lora: LoRA) -> None:
    """Freezes the model and adds adapters to the layers whose names end in `target_modules`."""
    from peft import LoraConfig

    targets = list(lora.target_modules)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets)
    model.requires_grad_(False)
    model.add_adapter(config, adapter_name=ADAPTER)


def build_model(cls: Any, config: dict[str, Any], init_from: str | None) -> Any:
    """A model in fp32, from its config or from the weights of a folder or embedded model.

    With both, the weights must fit the config's keys.

    Raises:
        ConfigError: a key that the model does not know, or a value that differs from the weights'.
    """
    legal = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
    for key in config:
        if key not in legal:
            close = difflib.get_close_matches(key, legal, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigError(f"task.model.{key}: {cls.__name__} has no such key{hint}")
    if init_from is None:
        return cls(**{key: _tuples(value) for key, value in config.items()})
    model = cls.from_pretrained(init_from, dtype=torch.float32)
    for key, value in config.items():
        if _tuples(model.config[key]) != _tuples(value) and key != "scaling_factor":
            raise ConfigError(
                f"task.model.{key} is {value!r}, the weights of {init_from} have "
                f"{model.config[key]!r}; leave the key out or train from scratch"
            )
    return model


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _checkpointing(model: Any, recipe: Recipe) -> None:
    if recipe.train.gradient_checkpointing:
        model.enable_gradient_checkpointing()
