"""Strict loading, saving, conversion, inspection, adapters and quantisation of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports

if TYPE_CHECKING:
    from sana_like.weights.convert import convert_checkpoint as convert_checkpoint
    from sana_like.weights.errors import WeightsError as WeightsError
    from sana_like.weights.hub import embedded_names as embedded_names
    from sana_like.weights.hub import resolve_folder as resolve_folder
    from sana_like.weights.inspect import inspect_weights as inspect_weights
    from sana_like.weights.int8 import pack_int8 as pack_int8
    from sana_like.weights.int8 import unpack_int8 as unpack_int8
    from sana_like.weights.lora import LoraReport as LoraReport
    from sana_like.weights.lora import fuse as fuse
    from sana_like.weights.lora import load_lora as load_lora
    from sana_like.weights.lora import lora_scaled as lora_scaled
    from sana_like.weights.lora import save_lora as save_lora
    from sana_like.weights.lora import set_scale as set_scale
    from sana_like.weights.lora import unfuse as unfuse
    from sana_like.weights.lora import unload_lora as unload_lora
    from sana_like.weights.lora_layers import adapter_names as adapter_names
    from sana_like.weights.model import StrictModel as StrictModel
    from sana_like.weights.model import published_state_dict as published_state_dict
    from sana_like.weights.quantize import quantize as quantize
    from sana_like.weights.strict import WeightsReader as WeightsReader

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "LoraReport": "lora",
        "StrictModel": "model",
        "WeightsError": "errors",
        "WeightsReader": "strict",
        "adapter_names": "lora_layers",
        "convert_checkpoint": "convert",
        "embedded_names": "hub",
        "fuse": "lora",
        "inspect_weights": "inspect",
        "load_lora": "lora",
        "lora_scaled": "lora",
        "pack_int8": "int8",
        "published_state_dict": "model",
        "quantize": "quantize",
        "resolve_folder": "hub",
        "save_lora": "lora",
        "set_scale": "lora",
        "unfuse": "lora",
        "unload_lora": "lora",
        "unpack_int8": "int8",
    },
)
