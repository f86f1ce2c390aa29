"""PEFT's layers inside a model: which layers can carry a LoRA, putting it on, taking it off."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sana_like.layers.pointwise import KernelLinear
from sana_like.weights.errors import WeightsError
from sana_like.weights.lora_file import LoraFactors, rank_settings


def adapter_names(model: nn.Module) -> list[str]:
    """Names of the attached adapters, in the order of loading."""
    return list(getattr(model, "peft_config", {}))


def lora_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """PEFT's layers in the model, with the names that their base layers have in files."""
    if not adapter_names(model):
        return []
    from peft.tuners.lora import LoraLayer

    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLayer)]


def adaptable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Layers that can carry a LoRA. Depthwise convolutions cannot: a kernel reads their weights."""
    wrapped = {name: layer.get_base_layer() for name, layer in lora_layers(model)}
    inside = tuple(f"{name}." for name in wrapped)
    plain = {
        name: module
        for name, module in model.named_modules()
        if not name.startswith(inside)
        and (
            isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
        )
    }
    return {**plain, **wrapped}


def fitted(pair: LoraFactors, layer: nn.Module, where: str) -> LoraFactors:
    """The factors in the shapes of `layer`; raises if they are those of another width."""
    weight: Any = layer.weight
    down, up = pair.down, pair.up
    if isinstance(layer, nn.Linear):
        down = layer.hold(down) if isinstance(layer, KernelLinear) else down
        # Some files write linear layers' factors as 1x1 convolutions.
        down, up = (x.flatten(1) if x.shape[2:].numel() == 1 else x for x in (down, up))
    want_down = (pair.rank, *weight.shape[1:])
    want_up = (weight.shape[0], pair.rank) + (1,) * (weight.ndim - 2)
    if tuple(down.shape) != want_down or tuple(up.shape) != want_up:
        raise WeightsError(
            f"{where}: lora_A {list(down.shape)} and lora_B {list(up.shape)} do not fit the layer, "
            f"which takes {list(want_down)} and {list(want_up)}; this adapter is for a model of "
            "another size."
        )
    return LoraFactors(down, up, pair.alpha)


def attach(model: Any, factors: Mapping[str, LoraFactors], adapter_name: str) -> None:
    """Wrap the layers that `factors` names, with these factors, and activate the adapter.

    Args:
        model: holds each layer named.
        factors: by layer, in the shapes that `fitted` gives.
        adapter_name: not yet in use.
    """
    from peft import LoraConfig, inject_adapter_in_model

    # The layers come with rank 1 on the meta device and get their factors below: PEFT's own
    # patterns for ranks take quadratic time.
    config = LoraConfig(
        r=1,
        target_modules="|".join(re.escape(name) for name in factors),
        init_lora_weights=False,
        inference_mode=True,
    )
    active = _active(model)
    trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with warnings.catch_warnings():
        # Of a second adapter, and of PEFT's own merging, which is not used here.
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        warnings.filterwarnings("ignore", message="TorchaoLoraLinear was instantiated without")
        inject_adapter_in_model(config, model, adapter_name, low_cpu_mem_usage=True)
    for parameter, requires_grad in trainable:
        parameter.requires_grad_(requires_grad)  # PEFT freezes the base
    for name, layer in lora_layers(model):
        if name in factors:
            _assign(layer, factors[name], adapter_name)
        layer.train(layer.get_base_layer().training)
        layer.set_adapter([*active, adapter_name], inference_mode=True)
    for key, value in rank_settings(factors).items():
        setattr(config, key, value)
    model._hf_peft_config_loaded = True  # diffusers' own methods ask for it


def _assign(layer: Any, pair: LoraFactors, adapter_name: str) -> None:
    """Give a layer its factors, in the dtype of its base unless that is an 8-bit one."""
    weight = layer.get_base_layer().weight
    dtype = weight.dtype if weight.dtype.itemsize > 1 else torch.bfloat16
    for module, factor in (
        (layer.lora_A[adapter_name], pair.down),
        (layer.lora_B[adapter_name], pair.up),
    ):
        module.weight = nn.Parameter(factor.to(weight.device, dtype), requires_grad=False)
        names = ("in_features", "out_features")
        if isinstance(module, nn.Conv2d):
            names = ("in_channels", "out_channels")
        setattr(module, names[0], factor.shape[1])
        setattr(module, names[1], factor.shape[0])
    layer.r[adapter_name] = pair.rank
    layer.lora_alpha[adapter_name] = pair.rank if pair.alpha is None else pair.alpha
    layer.set_scale(adapter_name, 1.0)


def _active(model: nn.Module) -> list[str]:
    layers = lora_layers(model)
    return list(dict.fromkeys(name for _, layer in layers for name in layer.active_adapters))


def merged_weight(name: str, layer: Any) -> Tensor:
    """Base weight plus the active adapters' products, summed in fp32, in the base's dtype."""
    weight = layer.get_base_layer().weight
    if type(weight.data) is not Tensor or not weight.is_floating_point():
        raise WeightsError(f"{name}: a quantised weight cannot be fused; fuse before quantising.")
    total = weight.detach().float()
    for adapter in layer.active_adapters:
        if adapter in layer.lora_A:
            down = layer.lora_A[adapter].weight.detach().float().flatten(1)
            up = layer.lora_B[adapter].weight.detach().float().flatten(1)
            total = total + layer.scaling[adapter] * (up @ down).view(total.shape)
    merged = total.to(weight.dtype)
    if not torch.isfinite(merged).all():
        raise WeightsError(f"{name}: the fused weight is not finite; lower the adapter's scale.")
    return merged


def unwrap(model: Any) -> None:
    """Put the base layers back in place of PEFT's."""
    for name, layer in lora_layers(model):
        parent, _, child = name.rpartition(".")
        model.get_submodule(parent).register_module(child, layer.get_base_layer())
    del model.peft_config
    model._hf_peft_config_loaded = False
