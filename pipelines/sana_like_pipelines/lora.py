"""LoRA adapters on a pipeline, under diffusers' names; `sana_like.weights.lora` does the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

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
from sana_like.weights.lora_layers import adapter_names, lora_layers


class LoraMixin:
    """Adapters of a pipeline's transformer."""

    transformer: Any

    def load_lora_weights(
        self,
        pretrained_model_name_or_path_or_dict: str | Path | Mapping[str, Tensor],
        adapter_name: str | None = None,
        *,
        strict: bool = True,
        **hub_options: Any,
    ) -> LoraReport:
        """Attach a LoRA and make it active beside those already there.

        Args:
            pretrained_model_name_or_path_or_dict: a safetensors file, a folder with one, a hub id,
                or a state dict; keys as diffusers, PEFT or kohya write them.
            adapter_name: letters, digits, `_` and `-`; by default `default_0`, `default_1`, ...
            strict: whether one key that fits nothing is an error; else it is reported.
            **hub_options: `revision`, `local_files_only`, `cache_dir`.

        Returns:
            Which layers carry it, and what of the file fitted nothing.

        Raises:
            WeightsError: see `sana_like.weights.lora.load_lora`. The model is then as before.
        """
        if adapter_name is None:
            taken = adapter_names(self.transformer)
            adapter_name = next(
                name for i in range(len(taken) + 1) if (name := f"default_{i}") not in taken
            )
        return load_lora(
            self.transformer,
            pretrained_model_name_or_path_or_dict,
            adapter_name,
            strict=strict,
            **hub_options,
        )

    def unload_lora_weights(self) -> None:
        """Take off all adapters; the weights are then the base's bit for bit.

        Raises:
            WeightsError: there is none.
        """
        unload_lora(self.transformer)

    def delete_adapters(self, adapter_names: str | Sequence[str]) -> None:
        """Take off some adapters.

        Raises:
            WeightsError: no adapter of a name.
        """
        for name in [adapter_names] if isinstance(adapter_names, str) else adapter_names:
            unload_lora(self.transformer, name)

    def set_adapters(
        self,
        adapter_names: str | Sequence[str],
        adapter_weights: float | Sequence[float] | None = None,
    ) -> None:
        """Choose the active adapters and their weights; all others are switched off.

        Raises:
            ValueError: numbers of names and weights differ.
            WeightsError: no adapter of a name, or an adapter is fused.
        """
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        weights = [1.0] * len(names) if adapter_weights is None else adapter_weights
        weights = [weights] * len(names) if isinstance(weights, (int, float)) else list(weights)
        if len(names) != len(weights):
            raise ValueError(f"{len(weights)} weights were given for {len(names)} adapters")
        chosen = dict(zip(names, weights, strict=True))
        set_scale(
            self.transformer,
            {name: 0.0 for name in self.get_list_adapters()["transformer"]} | chosen,
        )

    def get_list_adapters(self) -> dict[str, list[str]]:
        """Names of all adapters, by component."""
        return {"transformer": adapter_names(self.transformer)}

    def get_active_adapters(self) -> list[str]:
        """Names of the adapters that act."""
        active = [name for _, layer in self._lora_layers() for name in layer.active_adapters]
        return list(dict.fromkeys(active))

    def fuse_lora(self, lora_scale: float = 1.0) -> None:
        """Add the active adapters into the weights, for the speed of the plain model.

        The base weights are kept on the CPU, so that `unfuse_lora` gives them back bit for bit.

        Args:
            lora_scale: factor of all adapters' weights.

        Raises:
            WeightsError: no adapter, already fused, or a quantised weight.
        """
        with lora_scaled(self.transformer, lora_scale):
            fuse(self.transformer)

    def unfuse_lora(self) -> None:
        """Undo `fuse_lora`, bit for bit.

        Raises:
            WeightsError: nothing is fused.
        """
        unfuse(self.transformer)

    def save_lora_weights(
        self, save_directory: str | Path, adapter_name: str = "default_0"
    ) -> Path:
        """Write an adapter as a file that diffusers' pipelines read.

        Raises:
            WeightsError: no adapter of this name.
        """
        return save_lora(self.transformer, save_directory, adapter_name)

    def lora_scales(self) -> dict[str, float]:
        """Weight of every active adapter, 1 as trained."""
        scales: dict[str, float] = {}
        for _, layer in self._lora_layers():
            for name in layer.active_adapters:
                if name in layer.scaling and name not in scales:
                    trained = layer.lora_alpha[name] / layer.r[name]
                    scales[name] = layer.scaling[name] / trained if trained else 0.0
        return scales

    def _lora_layers(self) -> list[tuple[str, Any]]:
        return lora_layers(self.transformer)

    @contextmanager
    def _lora_scaled(self, attention_kwargs: Mapping[str, Any] | None) -> Iterator[None]:
        """`attention_kwargs={"scale": ...}` for a whole call, its text included."""
        with lora_scaled(self.transformer, (attention_kwargs or {}).get("scale", 1)):
            yield
