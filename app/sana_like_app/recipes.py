"""From the recipe in a picture back to the run that made it. A recipe may come from anyone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sana_like.zoo.fetch import sha256_of
from sana_like_app.request import LARGEST_SEED, SCHEDULERS, Adapter
from sana_like_app.setup import PIPELINES, VIDEO_PIPELINES, Setup, weights_of
from sana_like_app.speed import Speed


class RecipeError(ValueError):
    """A recipe that cannot be followed, or whose weights or pictures are not here any more."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One picture or video to make again."""

    setup: Setup
    prompt: str
    seed: int
    settings: Mapping[str, Any]
    dtype: str
    weights: Mapping[str, str]
    """Fingerprints by name; empty where the recipe has none."""
    digests: Mapping[str, str]
    """SHA-256 of the pictures that go in, by path."""
    prompts: Mapping[int, str] = field(default_factory=dict)
    """Of a video: further prompts, by the frame from which they are meant."""

    @property
    def is_video(self) -> bool:
        """Whether it is a video."""
        return self.setup.pipeline in VIDEO_PIPELINES

    def with_backend(self, name: str) -> Plan:
        """The same with another attention backend."""
        speed = replace(self.setup.speed, attention_backend=name)
        return replace(self, setup=replace(self.setup, speed=speed))

    def check_unchanged(self) -> None:
        """Compare the weights and the pictures that go in with those of the recipe.

        Raises:
            RecipeError: they are others, missing, or the recipe does not say.
        """
        if not self.weights:
            raise RecipeError(
                "the recipe does not say which weights it was made with; --force goes on"
            )
        present = weights_of(self.setup)
        for name in sorted(self.weights.keys() | present.keys()):
            if self.weights.get(name) != present.get(name):
                raise RecipeError(
                    f"the weights of {name!r} are not those of the recipe: "
                    f"{_short(present.get(name))} here, {_short(self.weights.get(name))} there; "
                    "--force goes on with those here"
                )
        for path, digest in self.digests.items():
            if not Path(path).is_file():
                raise RecipeError(f"the picture {path!r} that went in is not here any more")
            if sha256_of(Path(path)) != digest:
                raise RecipeError(
                    f"the picture {path!r} is not the one that went in; --force goes on with it"
                )


def read_plan(file: Path) -> Plan:
    """Read the recipe of `file` and check it; nothing is loaded.

    Raises:
        PictureError: there is no recipe.
        RecipeError: it cannot be followed.
    """
    from sana_like_pipelines.media import read_recipe

    recipe = read_recipe(file)
    run = recipe.get("run", {})
    _check(isinstance(run, dict), "run", run)
    pipeline, seed = recipe.get("pipeline"), recipe.get("seed")
    _check(pipeline in (*PIPELINES, *VIDEO_PIPELINES), "pipeline", pipeline)
    if recipe.get("resumed_after"):
        raise RecipeError(
            f"{file} goes on after {recipe['resumed_after']!r} frames of another video; make it "
            "again from that video's state, with --resume"
        )
    _check(type(seed) is int and 0 <= seed <= LARGEST_SEED, "seed", seed)
    _check(recipe.get("latents_given") is not True, "latents_given", True)
    settings = recipe.get("settings")
    _check(isinstance(settings, dict), "settings", settings)
    inputs = _inputs(run.get("inputs", {}))
    sampler = run.get("sampler")
    _check(sampler is None or sampler in SCHEDULERS, "sampler", sampler)
    negative = recipe.get("negative_prompt")
    _check(negative is None or isinstance(negative, str), "negative_prompt", negative)
    negatives = {} if negative is None else {"negative_prompt": negative}
    setup = Setup(
        pipeline=str(pipeline),
        model=_text(recipe, "model"),
        controlnets=tuple(_texts(run.get("controlnets", []), "controlnets")),
        adapters=_adapters(run.get("adapters", [])),
        scheduler=sampler,
        speed=_speed(recipe.get("speed", {})),
        inputs={
            name: [path for path, _ in pairs] if name == "control_image" else pairs[0][0]
            for name, pairs in inputs.items()
        },
    )
    weights = run.get("weights", {})
    _check(isinstance(weights, dict), "weights", weights)
    return Plan(
        setup=setup,
        prompt=_text(recipe, "prompt"),
        seed=int(seed or 0),
        settings=_settings(settings or {}) | negatives,
        dtype=_text(run, "dtype", "auto"),
        weights={str(name): str(mark) for name, mark in weights.items()},
        digests={path: digest for pairs in inputs.values() for path, digest in pairs},
        prompts=_prompts(recipe.get("prompts", {})),
    )


def _speed(value: Any) -> Speed:
    """What changes pictures; graphs do not, and the machine may have none."""
    _check(isinstance(value, dict), "speed", value)
    texts = {name: value.get(name) for name in ("quantize", "attention_backend")}
    for name, text in texts.items():
        _check(text is None or isinstance(text, str), name, text)
    return Speed(**texts, compile=value.get("compile") is True)


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call: plain values only, the rest is checked by the pipeline."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        flat = value if isinstance(value, list) else [value]
        fits = all(item is None or isinstance(item, bool | int | float | str) for item in flat)
        _check(fits or name == "attention_kwargs", name, value)
        plain[name] = tuple(value) if isinstance(value, list) else value
    return plain


def _inputs(value: Any) -> dict[str, list[tuple[str, str]]]:
    _check(isinstance(value, dict), "inputs", value)
    pictures: dict[str, list[tuple[str, str]]] = {}
    for name, entries in value.items():
        known = name in {"image", "mask_image", "control_image"}
        _check(known and isinstance(entries, list) and len(entries) > 0, name, entries)
        pictures[name] = [(_text(entry, "path"), _text(entry, "sha256")) for entry in entries]
    return pictures


def _adapters(value: Any) -> tuple[Adapter, ...]:
    _check(isinstance(value, list), "adapters", value)
    adapters = []
    for entry in value:
        path = _text(entry, "path")
        scale = entry.get("scale")
        _check(isinstance(scale, int | float), "scale", scale)
        adapters.append(Adapter(path=Path(path), scale=float(scale)))
    return tuple(adapters)


def _prompts(value: Any) -> dict[int, str]:
    _check(isinstance(value, dict), "prompts", value)
    for frame, text in value.items():
        _check(re.fullmatch(r"[0-9]{1,9}", frame) is not None, "prompts", frame)
        _check(isinstance(text, str), "prompts", text)
    return {int(frame): text for frame, text in value.items()}


def _texts(value: Any, name: str) -> list[str]:
    _check(isinstance(value, list) and all(isinstance(item, str) for item in value), name, value)
    return list(value)


def _text(values: Any, name: str, default: str | None = None) -> str:
    value = values.get(name, default) if isinstance(values, dict) else None
    _check(isinstance(value, str), name, value)
    return str(value)


def _check(fits: bool, name: str, value: Any) -> None:
    if not fits:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise RecipeError(f"the recipe's {name} is {shown}, which cannot be followed")


def _short(mark: str | None) -> str:
    return "none" if mark is None else mark[:12]
