"""LoRA adapters on a pipeline, under diffusers' names; `sana_like.weights.lora` does the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from sana_like.weights.lora import LoraReport, lora_scaled
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
            **hub_options: `weight_name`, `revision`, `local_files_only`, `cache_dir`.

        Returns:
            Which layers carry it, and what of the file fitted nothing.

        Raises:
            WeightsError: see `sana_like.weights.lora.load_lora`. The model is then as before.
        """
        return self.transformer.load_lora_adapter(
            pretrained_model_name_or_path_or_dict,
            adapter_name=adapter_name,
            strict=strict,
            **hub_options,
        )

    def unload_lora_weights(self) -> None:
        """Take off all adapters; the weights are then the base's bit for bit.

        Raises:
            WeightsError: there is none.
        """
        self.transformer.unload_lora()

    def delete_adapters(self, adapter_names: str | Sequence[str]) -> None:
        """Take off some adapters.

        Raises:
            WeightsError: no adapter of a name.
        """
        self.transformer.delete_adapters(adapter_names)

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
        self.transformer.set_adapters(adapter_names, adapter_weights)

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
        self.transformer.fuse_lora(lora_scale)

    def unfuse_lora(self) -> None:
        """Undo `fuse_lora`, bit for bit.

        Raises:
            WeightsError: nothing is fused.
        """
        self.transformer.unfuse_lora()

    def save_lora_weights(
        self, save_directory: str | Path, adapter_name: str | None = None
    ) -> Path:
        """Write an adapter as a file that diffusers' pipelines read.

        Args:
            save_directory: folder, made if absent.
            adapter_name: which of them; may be left out where there is one.

        Raises:
            WeightsError: no adapter of this name, or several and no name.
        """
        return self.transformer.save_lora_adapter(save_directory, adapter_name)

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
