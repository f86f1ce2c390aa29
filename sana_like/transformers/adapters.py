"""LoRA adapters as methods of a model, under diffusers' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffusers.loaders import PeftAdapterMixin
from torch import Tensor, nn

from sana_like.weights.errors import WeightsError
from sana_like.weights.lora import (
    LoraReport,
    fuse,
    load_lora,
    lora_scaled,
    save_lora,
    set_scale,
    unfuse,
    unload_lora,
)
from sana_like.weights.lora_layers import adapter_names as names_of


class AdapterMixin(nn.Module, PeftAdapterMixin):
    """diffusers' adapter methods, made strict: no key is left out unsaid, the way back is exact.

    What trains an adapter (`add_adapter`, `enable_adapters` and so on) is diffusers' own.
    """

    def load_lora_adapter(
        self,
        pretrained_model_name_or_path_or_dict: str | Path | Mapping[str, Tensor],
        prefix: str | None = "transformer",
        hotswap: bool = False,
        *,
        adapter_name: str | None = None,
        strict: bool = True,
        use_safetensors: bool | None = None,
        **hub_options: Any,
    ) -> LoraReport:
        """Attach a LoRA and make it active beside those already there.

        Args:
            pretrained_model_name_or_path_or_dict: a safetensors file, a folder with one, a hub id,
                or a state dict; keys as diffusers, PEFT or kohya write them.
            prefix: `"transformer"` or `None`; the usual prefixes are recognised with either.
            hotswap: only `False`; unload the other adapter first.
            adapter_name: letters, digits, `_` and `-`; by default `default_0`, `default_1`, ...
            strict: whether one key that fits nothing is an error; else it is reported.
            use_safetensors: not `False`; adapters are safetensors.
            **hub_options: `weight_name`, `revision`, `local_files_only`, `cache_dir`.

        Returns:
            Which layers carry it, and what of the file fitted nothing.

        Raises:
            ValueError: another prefix, hot-swapping, or pickles were asked for.
            WeightsError: see `sana_like.weights.lora.load_lora`. The model is then as before.
        """
        if prefix not in (None, "transformer"):
            raise ValueError(f"prefix={prefix!r} is unknown; legal: 'transformer' and None")
        if hotswap:
            raise ValueError("hotswap=True is not offered: unload the adapter, then load the other")
        if use_safetensors is False:
            raise ValueError("use_safetensors=False is not offered: adapters are safetensors")
        if adapter_name is None:
            taken = names_of(self)
            adapter_name = next(
                name for i in range(len(taken) + 1) if (name := f"default_{i}") not in taken
            )
        return load_lora(
            self,
            pretrained_model_name_or_path_or_dict,
            adapter_name,
            strict=strict,
            **hub_options,
        )

    def save_lora_adapter(  # type: ignore[override]
        self, save_directory: str | Path, adapter_name: str | None = None
    ) -> Path:
        """Write an adapter as `pytorch_lora_weights.safetensors`, which diffusers reads.

        Args:
            save_directory: folder, made if absent.
            adapter_name: which of them; may be left out where there is one.

        Returns:
            The file.

        Raises:
            WeightsError: no adapter of this name, or several and no name.
        """
        if adapter_name is None:
            taken = names_of(self)
            if len(taken) > 1:
                raise WeightsError(f"several adapters are attached ({', '.join(taken)}); name one.")
            adapter_name = taken[0] if taken else "default"
        return save_lora(self, save_directory, adapter_name)

    def set_adapters(  # type: ignore[override]
        self,
        adapter_names: str | Sequence[str],
        weights: float | Sequence[float] | None = None,
    ) -> None:
        """Choose the active adapters and their weights, 1 as trained; all others are switched off.

        Raises:
            ValueError: numbers of names and weights differ.
            WeightsError: no adapter of a name, or an adapter is fused.
        """
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        values = [1.0] * len(names) if weights is None else weights
        values = [values] * len(names) if isinstance(values, (int, float)) else list(values)
        if len(names) != len(values):
            raise ValueError(f"{len(values)} weights were given for {len(names)} adapters")
        chosen = dict(zip(names, values, strict=True))
        set_scale(self, dict.fromkeys(names_of(self), 0.0) | chosen)

    def delete_adapters(self, adapter_names: str | Sequence[str]) -> None:
        """Take off some adapters.

        Raises:
            WeightsError: no adapter of a name.
        """
        for name in [adapter_names] if isinstance(adapter_names, str) else adapter_names:
            unload_lora(self, name)

    def unload_lora(self) -> None:
        """Take off all adapters; the weights are then the base's bit for bit.

        Raises:
            WeightsError: there is none.
        """
        unload_lora(self)

    def fuse_lora(self, lora_scale: float = 1.0) -> None:  # type: ignore[override]
        """Add the active adapters into the weights, for the speed of the plain model.

        The base weights are kept on the CPU, so that `unfuse_lora` gives them back bit for bit.

        Args:
            lora_scale: factor of all adapters' weights.

        Raises:
            WeightsError: no active adapter, already fused, a quantised weight, or a result that is
                not finite.
        """
        with lora_scaled(self, lora_scale):
            fuse(self)

    def unfuse_lora(self) -> None:
        """Undo `fuse_lora`, bit for bit.

        Raises:
            WeightsError: nothing is fused.
        """
        unfuse(self)
