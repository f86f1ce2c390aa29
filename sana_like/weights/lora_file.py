"""LoRA files: from the spellings in use to one pair of factors per layer, and back.

A LoRA (arXiv 2106.09685) adds `scale * alpha / r * B @ A` to a weight. Read here are diffusers' and
PEFT's keys (`transformer.<layer>.lora_A.weight`), the older `lora.down`, `lora_down` and kohya's
flattened ones (`lora_unet_<layer with underscores>.lora_down.weight`), with `<layer>.alpha`, with
diffusers' metadata or with PEFT's `adapter_config.json`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from sana_like.weights.errors import WeightsError
from sana_like.weights.files import parse_json_object, read_json
from sana_like.weights.header import refuse_pickle_name
from sana_like.weights.hub import resolve_folder
from sana_like.weights.strict import WeightsReader, listing

LORA_FILE = "pytorch_lora_weights.safetensors"
PEFT_FILE = "adapter_model.safetensors"
# The key under which diffusers keeps the adapter's configuration in a file's metadata.
METADATA_KEY = "lora_adapter_metadata"
_PREFIXES = ("base_model.model.", "transformer.", "diffusion_model.", "model.", "module.")
_FLAT_PREFIXES = ("lora_unet_", "lora_transformer_")
_FACTOR = re.compile(
    r"(?P<layer>.+)\.(?P<part>lora_A|lora_B|lora\.down|lora\.up|lora_down|lora_up)"
    r"(?:\.(?!weight$)[^.]+)?\.weight"
)
_DOWN = frozenset({"lora_A", "lora.down", "lora_down"})


@dataclass(frozen=True)
class LoraFactors:
    """Of one layer: `down [r, I, ...]`, `up [O, r, ...]`, and alpha, None where not stated."""

    down: Tensor
    up: Tensor
    alpha: float | None

    @property
    def rank(self) -> int:
        """The inner dimension r."""
        return self.down.shape[0]


@dataclass
class LoraContents:
    """What a file holds: factors by the layer's name as written, and keys that are no factors."""

    source: str
    factors: dict[str, LoraFactors] = field(default_factory=dict)
    leftover: list[str] = field(default_factory=list)


def read_lora(source: str | Path | Mapping[str, Tensor], **hub_options: Any) -> LoraContents:
    """Read a LoRA.

    Args:
        source: a `.safetensors` file, a folder or hub id that holds `pytorch_lora_weights` or
            `adapter_model`, or a state dict.
        hub_options: `weight_name`, the file's name where the folder or hub repository has several;
            `revision`, `local_files_only`, `cache_dir` of `resolve_folder`.

    Raises:
        WeightsError: no such file, a broken file, a pickle, NaN or infinity in a factor, factors
            of different rank, an alpha that is not finite, or a config that is no JSON object.
    """
    if isinstance(source, Mapping):
        return _collect("the state dict", source, {})
    path = _lora_path(source, hub_options)
    reader = WeightsReader.open(path)
    return _collect(str(path), dict(reader.items()), _settings(reader, path))


def layer_name(written: str, layers: Iterable[str]) -> str | None:
    """The name in `layers` that a file's spelling `written` means, or None."""
    known = layers if isinstance(layers, (set, frozenset, dict)) else set(layers)
    name = written
    if name in known:
        return name
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
        if name in known:
            return name
    for prefix in _FLAT_PREFIXES:
        if written.startswith(prefix):
            flat = written.removeprefix(prefix)
            return next((layer for layer in known if layer.replace(".", "_") == flat), None)
    return None


def rank_settings(factors: Mapping[str, LoraFactors]) -> dict[str, Any]:
    """Ranks and alphas in the terms of PEFT's config: the usual value, and who differs from it."""
    ranks = {name: pair.rank for name, pair in factors.items()}
    alphas = {
        name: float(pair.rank if pair.alpha is None else pair.alpha)
        for name, pair in factors.items()
    }
    rank = Counter(ranks.values()).most_common(1)[0][0]
    alpha = Counter(alphas.values()).most_common(1)[0][0]
    return {
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {f"^{name}": value for name, value in ranks.items() if value != rank},
        "alpha_pattern": {f"^{name}": value for name, value in alphas.items() if value != alpha},
    }


def adapter_metadata(factors: Mapping[str, LoraFactors], prefix: str) -> dict[str, str]:
    """File metadata from which diffusers and `read_lora` take ranks and alphas."""
    settings = {**rank_settings(factors), "target_modules": sorted(factors)}
    named = {f"{prefix}.{key}": value for key, value in settings.items()}
    return {METADATA_KEY: json.dumps(named, sort_keys=True)}


def _lora_path(source: str | Path, hub_options: Mapping[str, Any]) -> Path:
    path = Path(source).expanduser()
    options = dict(hub_options)
    wanted = options.pop("weight_name", None)
    if wanted is not None:
        return _named_file(source, wanted, options)
    if path.suffix:
        refuse_pickle_name(path)
    if path.is_file() or path.suffix == ".safetensors":
        return path
    folder = resolve_folder(
        source, allow_patterns=[LORA_FILE, PEFT_FILE, "adapter_config.json"], **options
    )
    for name in (LORA_FILE, PEFT_FILE):
        if (folder / name).is_file():
            return folder / name
    single = sorted(folder.glob("*.safetensors"))
    if len(single) == 1:
        return single[0]
    names = listing([item.name for item in single]) or "none"
    raise WeightsError(f"{folder}: expected {LORA_FILE}; safetensors files in it: {names}.")


def _named_file(source: str | Path, name: str, hub_options: Mapping[str, Any]) -> Path:
    """The file `name` in a folder or hub repository; it may not lie elsewhere."""
    refuse_pickle_name(Path(name))
    if PurePosixPath(name).name != name or "\\" in name:
        raise WeightsError(f"weight_name={name!r} must be the name of a file in {str(source)!r}.")
    folder = resolve_folder(source, allow_patterns=[name, "adapter_config.json"], **hub_options)
    if not (folder / name).is_file():
        names = listing(sorted(item.name for item in folder.glob("*.safetensors"))) or "none"
        raise WeightsError(f"{folder}: has no {name}; safetensors files in it: {names}.")
    return folder / name


def _settings(reader: WeightsReader, path: Path) -> dict[str, Any]:
    """Rank and alpha settings kept in the file's metadata or in PEFT's file beside it."""
    text = reader.files[0].metadata.get(METADATA_KEY)
    if text is not None:
        named = parse_json_object(text.encode(), f"{path} ({METADATA_KEY})")
        return {key.rpartition(".")[2]: value for key, value in named.items()}
    beside = path.with_name("adapter_config.json")
    return read_json(beside) if path.name == PEFT_FILE and beside.is_file() else {}


def _collect(source: str, tensors: Mapping[str, Tensor], settings: dict[str, Any]) -> LoraContents:
    contents = LoraContents(source)
    halves: dict[str, dict[str, tuple[str, Tensor]]] = {}
    alphas: dict[str, tuple[str, float]] = {}
    for key, tensor in tensors.items():
        match = _FACTOR.fullmatch(key)
        if match:
            side = "down" if match["part"] in _DOWN else "up"
            halves.setdefault(match["layer"], {})[side] = (key, tensor)
        elif key.endswith(".alpha") and tensor.numel() == 1:
            alphas[key.removesuffix(".alpha")] = (key, _finite(float(tensor), f"{source}: {key}"))
        else:
            contents.leftover.append(key)
    for layer, pair in halves.items():
        if len(pair) == 1:
            contents.leftover.append(next(iter(pair.values()))[0])
            continue
        down, up = pair["down"][1], pair["up"][1]
        _check_pair(source, layer, down, up)
        _, alpha = alphas.pop(layer, (None, None))
        if alpha is None:
            alpha = _alpha_from(source, settings, layer, down.shape[0])
        contents.factors[layer] = LoraFactors(down, up, alpha)
    contents.leftover += [key for key, _ in alphas.values()]
    return contents


def _check_pair(source: str, layer: str, down: Tensor, up: Tensor) -> None:
    shapes = f"lora_A {list(down.shape)} and lora_B {list(up.shape)}"
    if down.ndim < 2 or up.ndim < 2 or down.shape[0] == 0 or up.shape[1] != down.shape[0]:
        raise WeightsError(
            f"{source}: {layer}: {shapes} have different ranks; lora_A is [r, in], lora_B [out, r]."
        )
    for name, factor in (("lora_A", down), ("lora_B", up)):
        if not (factor.is_floating_point() and torch.isfinite(factor.float()).all()):
            raise WeightsError(f"{source}: {layer}: {name} holds NaN, infinity or no real numbers.")


def _alpha_from(source: str, settings: Mapping[str, Any], layer: str, rank: int) -> float | None:
    """Alpha of `layer` by PEFT's rules; rank-stabilised scaling is folded into it."""
    pattern = settings.get("alpha_pattern")
    found = settings.get("lora_alpha")
    for name, value in (pattern if isinstance(pattern, dict) else {}).items():
        if layer == name.removeprefix("^") or layer.endswith("." + name.removeprefix("^")):
            found = value
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    alpha = _finite(float(found), f"{source}: {layer}: lora_alpha")
    return alpha * rank**0.5 if settings.get("use_rslora") is True else alpha


def _finite(alpha: float, where: str) -> float:
    if not math.isfinite(alpha):
        raise WeightsError(f"{where} is {alpha}; it must be a finite number.")
    return alpha
