"""Opening a checkpoint of unknown origin: nothing but tensors comes out.

Pickles are opened here and nowhere else, and only from the conversion's own process.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sana_like.weights.errors import WeightsError
from sana_like.weights.files import regular_file_size
from sana_like.weights.strict import WeightsReader, listing

# Where trainers put the weights, outermost first; the first that is there is taken.
_SECTIONS = ("state_dict", "model", "module")
_WRAPPERS = ("module.", "_orig_mod.", "model.")


def read_checkpoint(source: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Read the tensors of `.safetensors` or of a pickle, the latter with `weights_only`.

    Returns:
        Tensors by key, without the prefixes of wrappers; and the names of what else the file
        holds, such as an optimiser.

    Raises:
        WeightsError: broken, not a checkpoint, or a pickle that would run code.
    """
    if source.suffix in (".safetensors", ".json"):
        return dict(WeightsReader.open(source).items()), []
    size = regular_file_size(source)
    try:
        # Mapped into memory where the format allows, so that tensors are read as they are written.
        loaded = torch.load(
            source, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(source)
        )
    except pickle.UnpicklingError as error:
        reason = str(error).strip().splitlines()[0]
        raise WeightsError(
            f"{source}: refused: it holds more than tensors, and loading that could run code "
            f"({reason}). Get the weights as safetensors."
        ) from error
    except Exception as error:  # the unpickler fails in any way a broken file can make it
        kind = type(error).__name__
        raise WeightsError(
            f"{source}: no readable checkpoint, {size} bytes: {kind}: {error}. Download it again."
        ) from error
    return _weights_in(loaded, source)


def _weights_in(loaded: Any, source: Path) -> tuple[dict[str, Tensor], list[str]]:
    ignored: list[str] = []
    while isinstance(loaded, Mapping):
        section = next((name for name in _SECTIONS if isinstance(loaded.get(name), Mapping)), None)
        if section is None:
            break
        ignored += [str(key) for key in loaded if key != section]
        loaded = loaded[section]
    if not isinstance(loaded, Mapping) or not loaded:
        raise WeightsError(f"{source}: expected a state dict, found {type(loaded).__name__}.")
    strange = [str(key) for key, value in loaded.items() if not isinstance(value, Tensor)]
    if strange:
        raise WeightsError(f"{source}: these entries are no tensors: {listing(strange)}.")
    tensors = {str(key): tensor for key, tensor in loaded.items()}
    for prefix in _WRAPPERS:
        if all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors, ignored
