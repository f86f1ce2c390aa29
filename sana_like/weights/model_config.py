"""A model's `config.json`, checked before anything is built from it."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sana_like.weights.errors import WeightsError
from sana_like.weights.files import read_json

_BOOKKEEPING_KEYS = frozenset({"_class_name", "_diffusers_version", "_name_or_path"})


def read_model_config(
    folder: Path, class_names: Collection[str], init: Callable[..., Any]
) -> dict[str, Any]:
    """Read `config.json` in `folder`.

    Args:
        folder: a model folder.
        class_names: legal values of `_class_name`.
        init: the constructor, whose annotated parameters are the legal keys.

    Returns:
        Arguments for `init`.

    Raises:
        WeightsError: no such file, another class, an unknown key, or a value of the wrong type.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise WeightsError(f"{folder}: has no config.json.{_subfolder_hint(folder)}")
    config = read_json(path)
    name = config.get("_class_name")
    wanted = " or ".join(sorted(class_names))
    if name not in class_names:
        raise WeightsError(f"{path}: describes a {name!r}; expected {wanted}.")
    if "quantization_config" in config:
        raise WeightsError(
            f"{path}: the weights are quantised by another library. Load the unquantised weights, "
            "then call sana_like.weights.quantize."
        )
    arguments = {key: value for key, value in config.items() if key not in _BOOKKEEPING_KEYS}
    check_arguments(arguments, legal_hints(init), f"{path}: {wanted}")
    return arguments


def legal_hints(init: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a constructor and their types."""
    function = inspect.unwrap(init)
    hints = typing.get_type_hints(function)
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    return {name: hints.get(name, Any) for name in names}


def check_arguments(arguments: Mapping[str, Any], hints: Mapping[str, Any], where: str) -> None:
    """Raise `WeightsError` for a key without a hint, or a value that does not fit its hint.

    Args:
        arguments: key to value, as JSON has it.
        hints: from `legal_hints`.
        where: what a message begins with.
    """
    for key, value in arguments.items():
        if key not in hints:
            close = get_close_matches(key, hints, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"legal: {', '.join(hints)}."
            raise WeightsError(f"{where} has no key {key!r}; {meant}")
        if not _fits(value, hints[key]):
            kind = getattr(hints[key], "__name__", None) or str(hints[key])
            raise WeightsError(f"{where}: {key}={str(value)[:80]!r} must be of type {kind}.")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value can stand for a type; lists stand for tuples, integers for floats."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if origin in (tuple, list):
        return isinstance(value, (list, tuple)) and all(_fits(item, inner[0]) for item in value)
    if hint is float:
        return type(value) in (int, float)
    if hint in (int, str, bool, types.NoneType):
        return type(value) is hint
    return True  # a type that JSON does not have; the constructor checks it


def _subfolder_hint(folder: Path) -> str:
    if not folder.is_dir():
        return " There is no such folder."
    inner = sorted(path.parent.name for path in folder.glob("*/config.json"))
    return f" Models inside it: {', '.join(inner)}; choose one with subfolder=..." if inner else ""
