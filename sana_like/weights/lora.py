"""LoRA adapters on a model: attach, weigh, fuse, take off. The base weights are never lost.

The layers are PEFT's, so that what knows PEFT (diffusers' `attention_kwargs={"scale": ...}`, its
training scripts) works on them. Attaching, fusing and taking off are done here, because unloading,
unfusing and a scale of zero must give the base model back bit for bit.

Text that `prepare_text` projected before an adapter changed is stale; prepare it again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sana_like.layers.pointwise import KernelLinear
from sana_like.weights.errors import WeightsError
from sana_like.weights.lora_file import (
    LORA_FILE,
    LoraFactors,
    adapter_metadata,
    layer_name,
    read_lora,
)
from sana_like.weights.lora_layers import (
    adaptable_layers,
    adapter_names,
    attach,
    fitted,
    lora_layers,
    merged_weight,
    unwrap,
)
from sana_like.weights.strict import listing
from sana_like.weights.writer import write_safetensors

_ADAPTER_NAME = re.compile(r"[A-Za-z0-9_-]+")
_BASE_COPY = "_weight_before_fusing"


@dataclass(frozen=True)
class LoraReport:
    """What `load_lora` did.

    Attributes:
        adapter_name: the name to weigh or unload it by.
        source: file that it came from.
        matched: layers that now carry it.
        unmatched: keys or layers of the file that fit nothing; empty in strict mode.
        ranks: rank to number of layers.
    """

    adapter_name: str
    source: str
    matched: tuple[str, ...]
    unmatched: tuple[str, ...]
    ranks: Mapping[int, int]


def load_lora(
    model: nn.Module,
    source: str | Path | Mapping[str, Tensor],
    adapter_name: str = "default",
    *,
    strict: bool = True,
    **hub_options: Any,
) -> LoraReport:
    """Attach a LoRA to `model` and make it active beside those already there.

    Args:
        model: any of our models; its linear layers, former 1x1 convolutions and ungrouped
            convolutions can carry a LoRA.
        source: see `read_lora`.
        adapter_name: letters, digits, `_` and `-`.
        strict: whether one key that fits nothing is an error; else such keys are in the report.
        hub_options: `weight_name`, `revision`, `local_files_only`, `cache_dir`.

    Raises:
        WeightsError: nothing fits (with counts), something does not in strict mode, a factor's
            shape differs from its layer's (with both shapes), the name is taken or not legal, or
            an adapter is fused. The model is then as before.
    """
    if not _ADAPTER_NAME.fullmatch(adapter_name):
        raise WeightsError(f"adapter_name={adapter_name!r}: use letters, digits, '_' and '-'.")
    if adapter_name in adapter_names(model):
        raise WeightsError(f"the adapter name {adapter_name!r} is taken; unload that one first.")
    _require_unfused(model, "load another adapter")
    contents = read_lora(source, **hub_options)
    layers = adaptable_layers(model)
    factors: dict[str, LoraFactors] = {}
    unmatched = list(contents.leftover)
    for written, pair in contents.factors.items():
        name = layer_name(written, layers)
        if name is None or name in factors:
            unmatched.append(written)
        else:
            factors[name] = fitted(pair, layers[name], f"{contents.source}: {written}")
    total = len(contents.factors)
    if not factors:
        raise WeightsError(
            f"{contents.source}: 0 of {total} adapted layers fit {type(model).__name__} "
            f"({len(unmatched)} keys or layers left over: {listing(unmatched)}). Its layers are "
            f"named like {next(iter(layers), 'none')!r}; this adapter is for another model."
        )
    if unmatched and strict:
        raise WeightsError(
            f"{contents.source}: {len(factors)} of {total} adapted layers fit "
            f"{type(model).__name__}; left over: {listing(unmatched)}. Pass strict=False to use "
            "the part that fits."
        )
    attach(model, factors, adapter_name)
    ranks = Counter(pair.rank for pair in factors.values())
    return LoraReport(adapter_name, contents.source, tuple(factors), tuple(unmatched), dict(ranks))


def set_scale(model: nn.Module, scales: Mapping[str, float]) -> None:
    """Set the strength of adapters; 1 is as trained, 0 switches one off exactly.

    Raises:
        WeightsError: an unknown name, a scale that is not finite, or a fused adapter.
    """
    _require_unfused(model, "change a scale")
    names = adapter_names(model)
    for name, scale in scales.items():
        if name not in names:
            raise WeightsError(f"no adapter {name!r}; attached: {', '.join(names) or 'none'}.")
        if not abs(scale) < float("inf"):
            raise WeightsError(f"adapter {name!r}: scale {scale} is not a finite number.")
    for _, layer in lora_layers(model):
        active = list(layer.active_adapters)
        for name, scale in scales.items():
            layer.set_scale(name, scale)
            active = [other for other in active if other != name] + [name] * (scale != 0)
        layer.set_adapter(active, inference_mode=True)


@contextmanager
def lora_scaled(model: nn.Module, factor: float) -> Iterator[None]:
    """Multiply all scales inside a `with` block; 0 switches the adapters off exactly.

    Unlike dividing by the factor afterwards this gives every scale back bit for bit, also after 0.

    Raises:
        WeightsError: an adapter is fused, which a factor could not reach.
    """
    if factor != 1:
        _require_unfused(model, "change a scale")
    saved = [
        (layer, dict(layer.scaling), list(layer.active_adapters))
        for _, layer in (lora_layers(model) if factor != 1 else ())
    ]
    try:
        for layer, scaling, _ in saved:
            layer.scaling.update({name: scale * factor for name, scale in scaling.items()})
            if factor == 0:
                layer._active_adapter = []
        yield
    finally:
        for layer, scaling, active in saved:
            layer.scaling.update(scaling)
            layer._active_adapter = active


def fuse(model: nn.Module, *, keep_base: bool = True) -> None:
    """Add the active adapters into the weights, for the speed of the plain model.

    Args:
        model: with at least one adapter.
        keep_base: keep a copy of each changed weight on the CPU, so that `unfuse` gives it back bit
            for bit. False drops copies and adapters: the model is plain again and can be saved.

    Raises:
        WeightsError: no active adapter, already fused, a quantised weight, or a result that is not
            finite. The model is then as before.
    """
    _require_unfused(model, "fuse")
    layers = lora_layers(model)
    if not any(layer.active_adapters for _, layer in layers):
        names = ", ".join(adapter_names(model)) or "none"
        raise WeightsError(f"there is no active adapter to fuse; attached: {names}.")
    merged = [(layer, merged_weight(name, layer)) for name, layer in layers]
    for layer, weight in merged:
        base = layer.get_base_layer().weight
        if keep_base:
            setattr(layer, _BASE_COPY, base.detach().to("cpu", copy=True))
        base.data = weight
        layer.merged_adapters = list(layer.active_adapters)
    if not keep_base:
        unwrap(model)


def unfuse(model: nn.Module) -> None:
    """Undo `fuse`; the base weights come back bit for bit.

    Raises:
        WeightsError: nothing is fused.
    """
    fused = [layer for _, layer in lora_layers(model) if hasattr(layer, _BASE_COPY)]
    if not fused:
        raise WeightsError("no adapter is fused with keep_base=True; there is nothing to undo.")
    for layer in fused:
        weight = layer.get_base_layer().weight
        weight.data = getattr(layer, _BASE_COPY).to(weight.device, weight.dtype)
        delattr(layer, _BASE_COPY)
        layer.merged_adapters = []


def unload_lora(model: Any, adapter_name: str | None = None) -> None:
    """Take off one adapter, or all; the weights are then the base's bit for bit.

    Raises:
        WeightsError: no adapter of this name.
    """
    names = adapter_names(model)
    if not names or (adapter_name is not None and adapter_name not in names):
        wanted = "adapter" if adapter_name is None else f"adapter {adapter_name!r}"
        raise WeightsError(f"no {wanted} to unload; attached: {', '.join(names) or 'none'}.")
    if any(layer.merged for _, layer in lora_layers(model)):
        unfuse(model)
    if adapter_name is None or names == [adapter_name]:
        unwrap(model)
        return
    for _, layer in lora_layers(model):
        active = [name for name in layer.active_adapters if name != adapter_name]
        layer.delete_adapter(adapter_name)
        layer.set_adapter(active, inference_mode=True)
    model.peft_config.pop(adapter_name)


def save_lora(
    model: nn.Module,
    folder: str | Path,
    adapter_name: str = "default",
    *,
    prefix: str = "transformer",
) -> Path:
    """Write one adapter as `pytorch_lora_weights.safetensors`, which diffusers' pipelines read.

    Factors of convolutions that are held as matrices are written in the shape of convolutions, as
    diffusers' model has them.

    Returns:
        The file.

    Raises:
        WeightsError: no adapter of this name.
    """
    factors = {}
    tensors = {}
    for name, layer in lora_layers(model):
        if adapter_name not in layer.lora_A:
            continue
        down, up = layer.lora_A[adapter_name].weight, layer.lora_B[adapter_name].weight
        factors[name] = LoraFactors(down, up, layer.lora_alpha[adapter_name])
        base = layer.get_base_layer()
        if isinstance(base, KernelLinear):
            down, up = base.publish(down), up.view(*up.shape, *(1 for _ in base.kernel))
        tensors[f"{prefix}.{name}.lora_A.weight"] = down
        tensors[f"{prefix}.{name}.lora_B.weight"] = up
    if not factors:
        names = ", ".join(adapter_names(model)) or "none"
        raise WeightsError(f"no adapter {adapter_name!r} to save; attached: {names}.")
    path = Path(folder) / LORA_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, tensors, adapter_metadata(factors, prefix))
    return path


def _require_unfused(model: nn.Module, action: str) -> None:
    if any(layer.merged for _, layer in lora_layers(model)):
        raise WeightsError(f"an adapter is fused; unfuse before you {action}.")
