"""Builds the task of a recipe with its models, fresh or from given weights."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.autoencoders.dc_ae_video import AutoencoderDCVideo
from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.transformers.video import SanaVideoTransformer3DModel
from sana_like_train.components import pipeline_index
from sana_like_train.config import (
    AutoencoderTask,
    ConfigError,
    FewStepPairsTask,
    LoRA,
    Recipe,
    SelfForcingTask,
    TextToImageTask,
    TextToVideoTask,
    VideoAutoencoderTask,
)
from sana_like_train.exporting import ADAPTER
from sana_like_train.tasks.autoencoder import AutoencoderTraining
from sana_like_train.tasks.base import TrainingTask, derived_seed
from sana_like_train.tasks.few_step_pairs import FewStepPairsTraining
from sana_like_train.tasks.self_forcing import SelfForcingTraining
from sana_like_train.tasks.text_to_image import TextToImageTraining
from sana_like_train.tasks.text_to_video import TextToVideoTraining
from sana_like_train.tasks.video_autoencoder import VideoAutoencoderTraining


def build_task(recipe: Recipe) -> TrainingTask:
    """The task of a recipe with its model, initialised from the seed or from given weights.

    Raises:
        ConfigError: unknown model keys, with the closest legal one.
    """
    torch.manual_seed(derived_seed(recipe.train.seed, "initialisation"))
    builders: dict[type, Callable[[Recipe, Any], TrainingTask]] = {
        AutoencoderTask: _autoencoder,
        TextToImageTask: _text_to_image,
        VideoAutoencoderTask: _video_autoencoder,
        TextToVideoTask: _text_to_video,
        FewStepPairsTask: _few_step_pairs,
        SelfForcingTask: _self_forcing,
    }
    return builders[type(recipe.task)](recipe, recipe.task)


def _autoencoder(recipe: Recipe, task: AutoencoderTask) -> TrainingTask:
    model = build_model(AutoencoderDC, task.model, recipe.train.init_from)
    _checkpointing(model, recipe)
    return AutoencoderTraining(recipe, model)


def _text_to_image(recipe: Recipe, task: TextToImageTask) -> TrainingTask:
    source = _transformer_source(recipe.train.init_from)
    model = build_model(SanaTransformer2DModel, task.model, source)
    _checkpointing(model, recipe)
    controlnet = None
    if task.lora is not None:
        _add_lora(model, task.lora)
    if task.control is not None:
        controlnet = SanaControlNetModel.from_transformer(model, task.control.num_layers)
        _checkpointing(controlnet, recipe)
        model.requires_grad_(False).eval()
    return TextToImageTraining(recipe, model, controlnet, pick_device(recipe.train.device))


def _video_autoencoder(recipe: Recipe, task: VideoAutoencoderTask) -> TrainingTask:
    start = recipe.train.init_from
    if start is None and task.image_autoencoder is not None:
        image = AutoencoderDC.from_pretrained(task.image_autoencoder, dtype=torch.float32)
        model = _begun(AutoencoderDCVideo, image, task.model)
    else:
        model = build_model(AutoencoderDCVideo, task.model, start)
    _checkpointing(model, recipe)
    return VideoAutoencoderTraining(recipe, model)


def _text_to_video(recipe: Recipe, task: TextToVideoTask) -> TrainingTask:
    source = _transformer_source(recipe.train.init_from)
    begun = source is None and task.image_model is not None
    if begun:
        folder = _transformer_source(task.image_model)
        image = SanaTransformer2DModel.from_pretrained(str(folder), dtype=torch.float32)
        model = _begun(SanaVideoTransformer3DModel, image, task.model)
    else:
        model = build_model(SanaVideoTransformer3DModel, task.model, source)
    _checkpointing(model, recipe)
    fresh = source is None and not begun
    return TextToVideoTraining(recipe, model, fresh, pick_device(recipe.train.device))


def _few_step_pairs(recipe: Recipe, task: FewStepPairsTask) -> TrainingTask:
    return FewStepPairsTraining(
        recipe, _student(recipe, task.model), pick_device(recipe.train.device)
    )


def _self_forcing(recipe: Recipe, task: SelfForcingTask) -> TrainingTask:
    teacher, critic = (
        build_model(SanaVideoTransformer3DModel, task.model, _transformer_source(task.teacher))
        for _ in range(2)
    )
    _checkpointing(critic, recipe)
    student, device = _student(recipe, task.model), pick_device(recipe.train.device)
    return SelfForcingTraining(recipe, student, teacher, critic, device)


def _student(recipe: Recipe, config: dict[str, Any]) -> Any:
    source = _transformer_source(recipe.train.init_from)
    model = build_model(SanaVideoTransformer3DModel, config, source)
    _checkpointing(model, recipe)
    return model


def pick_device(name: str) -> torch.device:
    """The device that a recipe's `train.device` means; per process under a launcher."""
    if name == "cpu":
        return torch.device("cpu")
    from accelerate import PartialState

    return PartialState().device


def _transformer_source(source: str | None) -> str | None:
    """A folder or name, or the transformer inside it where that is a pipeline."""
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
    _check_keys(cls, config)
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


def _check_keys(cls: Any, config: dict[str, Any]) -> None:
    legal = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
    for key in config:
        if key not in legal:
            close = difflib.get_close_matches(key, legal, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigError(f"task.model.{key}: {cls.__name__} has no such key{hint}")


def _begun(cls: Any, image: Any, config: dict[str, Any]) -> Any:
    """A model of clips that begins as one of pictures, with some config keys changed."""
    _check_keys(cls, config)
    try:
        return cls.from_image(image, **{key: _tuples(value) for key, value in config.items()})
    except ValueError as error:
        raise ConfigError(f"task.model: {error}") from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _checkpointing(model: Any, recipe: Recipe) -> None:
    if recipe.train.gradient_checkpointing:
        model.enable_gradient_checkpointing()
