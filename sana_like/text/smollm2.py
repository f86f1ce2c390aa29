"""The embedded text encoder: the first layers of SmolLM2-135M-Instruct.

The GGUF file that :func:`sana_like.zoo.fetch.fetch` gets takes seconds to read. What is needed of
it is therefore written once, as a safetensors file (bf16) and a ``tokenizer.json``, into the cache
folder. A manifest beside them, written last, names the hash of the source and of both files: a
cache that was cut short or changed is noticed and written again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sana_like.text.gguf_reader import llama_config, llama_state_dict, open_gguf, tokenizer_json
from sana_like.text.settings import EMBEDDED_HIDDEN_LAYER
from sana_like.weights.files import replacing
from sana_like.zoo.fetch import SMOLLM2, cache_folder, fetched_path, sha256_of

if TYPE_CHECKING:
    from transformers import LlamaModel, PreTrainedTokenizerFast

__all__ = ["load_smollm2", "load_smollm2_tokenizer"]

_LOG = logging.getLogger(__name__)
_WEIGHTS, _TOKENIZER, _CONFIG = _FILES = ("model.safetensors", "tokenizer.json", "config.json")
_MANIFEST = "manifest.txt"
_FORMAT = 1
"""Raised when the content of the cache changes, so that older caches are written again."""


def load_smollm2(
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    num_layers: int = EMBEDDED_HIDDEN_LAYER,
    root: Path | None = None,
    gguf_file: Path | None = None,
) -> tuple[PreTrainedTokenizerFast, LlamaModel]:
    """Load SmolLM2-135M-Instruct as a text encoder; no network.

    Args:
        dtype: dtype of the weights in memory (they are stored in bf16).
        device: device of the weights.
        num_layers: how many layers to keep. When the model is cut, its final norm (which belongs to
            the last layer) is replaced by the identity, so that the last hidden state of the result
            equals ``hidden_states[num_layers]`` of the whole model.
        root: cache folder to use instead of the user's.
        gguf_file: read this file instead of the fetched one.

    Returns:
        The tokenizer and the decoder in evaluation mode, gradients off; width 576.

    Raises:
        FetchError: the GGUF file has not been fetched.
        GGUFError: the file given is not such a model.
        ValueError: ``num_layers`` is more than the file has, or less than 1.
    """
    parts = _load_parts(num_layers, root, gguf_file)
    return _build_tokenizer(parts), _build_model(parts, dtype, device)


def load_smollm2_tokenizer(
    *, root: Path | None = None, gguf_file: Path | None = None
) -> PreTrainedTokenizerFast:
    """The tokenizer alone; arguments and errors as in :func:`load_smollm2`."""
    return _build_tokenizer(_load_parts(EMBEDDED_HIDDEN_LAYER, root, gguf_file))


class _Parts:
    """What the cache holds: arguments of the config, weights, and the tokenizer's text."""

    def __init__(
        self, config: dict[str, Any], weights: dict[str, torch.Tensor], tokenizer: str
    ) -> None:
        self.config = config
        self.weights = weights
        self.tokenizer = tokenizer


def _load_parts(num_layers: int, root: Path | None, gguf_file: Path | None) -> _Parts:
    folder = cache_folder(SMOLLM2, root) / f"layers-{num_layers}"
    source_hash = SMOLLM2.file_sha256 if gguf_file is None else sha256_of(gguf_file)
    parts = _read_cache(folder, source_hash)
    if parts is None:
        source = fetched_path(SMOLLM2, root=root) if gguf_file is None else gguf_file
        parts = _convert(source, num_layers)
        _write_cache(folder, source_hash, parts)
    return parts


def _convert(source: Path, num_layers: int) -> _Parts:
    reader = open_gguf(source)
    config = llama_config(reader)
    total = config["num_hidden_layers"]
    if not 1 <= num_layers <= total:
        raise ValueError(
            f"num_layers is {num_layers}, the file has {total} layers: give 1..{total}"
        )
    weights = llama_state_dict(reader, num_layers=num_layers, dtype=torch.bfloat16)
    if num_layers < total:
        del weights["norm.weight"]
    config["num_hidden_layers"] = num_layers
    return _Parts(config, weights, tokenizer_json(reader))


def _build_model(parts: _Parts, dtype: torch.dtype, device: torch.device | str) -> LlamaModel:
    from transformers import LlamaConfig, LlamaModel

    arguments = dict(parts.config)
    rope = {"rope_type": "default", "rope_theta": arguments.pop("rope_theta")}
    config = LlamaConfig(rope_parameters=rope, dtype=dtype, **arguments)
    # Built without storage: initialising weights that are replaced at once would cost seconds.
    with torch.device("meta"):
        model = LlamaModel(config)
    if "norm.weight" not in parts.weights:
        model.set_submodule("norm", torch.nn.Identity())
    weights = {}
    for key in list(parts.weights):
        # Taken out one by one, so that both copies of the whole model never exist together.
        weights[key] = parts.weights.pop(key).to(device, dtype)
    model.load_state_dict(weights, strict=True, assign=True)
    # The table of rotary frequencies is not part of the weights; it is computed where it is used.
    model.rotary_emb = type(model.rotary_emb)(config=config).to(device)
    return model.eval().requires_grad_(False)


def _build_tokenizer(parts: _Parts) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(parts.tokenizer)
    names = {
        f"{role}_token": tokenizer.id_to_token(parts.config[f"{role}_token_id"])
        for role in ("bos", "eos", "pad")
        if parts.config[f"{role}_token_id"] is not None
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="right", **names)


def _manifest(source_hash: str, hashes: dict[str, str]) -> str:
    """Text of the manifest; a cache is whole if its files give this text again."""
    lines = [f"format {_FORMAT}", f"source {source_hash}"]
    return "\n".join([*lines, *(f"{name} {hashes[name]}" for name in _FILES)]) + "\n"


def _read_cache(folder: Path, source_hash: str) -> _Parts | None:
    """The cached parts, or ``None`` where there is no cache, or a stale or damaged one."""
    from safetensors.torch import load_file

    if not (folder / _MANIFEST).is_file():
        return None
    try:
        stored = (folder / _MANIFEST).read_bytes()
        hashes = {name: sha256_of(folder / name) for name in _FILES}
        if stored == _manifest(source_hash, hashes).encode():
            # Mapped: the pages are read once and shared between processes.
            weights = load_file(folder / _WEIGHTS)
            config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
            return _Parts(config, weights, (folder / _TOKENIZER).read_text(encoding="utf-8"))
    except OSError as error:
        _LOG.debug("cache in %s: %s", folder, error)
    _LOG.warning("the text encoder's cache in %s is stale or damaged: written again", folder)
    return None


def _write_cache(folder: Path, source_hash: str, parts: _Parts) -> None:
    """Write the cache; where that is not possible the parts just stay in memory."""
    from safetensors.torch import save

    content = {
        _WEIGHTS: save(parts.weights, metadata={"format": "pt"}),
        _TOKENIZER: parts.tokenizer.encode("utf-8"),
        _CONFIG: json.dumps(parts.config, indent=1).encode("utf-8"),
    }
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    # Last, so that a manifest never speaks of files that are not complete.
    content[_MANIFEST] = _manifest(source_hash, hashes).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            with replacing(folder / name) as part:
                part.write_bytes(data)
    except OSError as error:
        _LOG.warning("the text encoder is kept in memory only: cannot write %s (%s)", folder, error)
