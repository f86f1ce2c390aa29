"""Loading, saving, moving and offloading of pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline

from sana_like.text.settings import TextSettings
from sana_like.weights.errors import WeightsError
from sana_like.weights.hub import resolve_folder
from sana_like_pipelines.loading import (
    ZOO_LIBRARY,
    ZOO_TEXT_ENCODER,
    Dtypes,
    Index,
    LoadOptions,
    check_weights,
    hub_patterns,
    load_component,
    load_given,
)
from sana_like_pipelines.preview import LatentRGB
from sana_like_pipelines.saving import Entry, is_embedded_text, save_component, write_index

TEXT_COMPONENTS = ("tokenizer", "text_encoder")


class Setting(Protocol):
    """What a pipeline keeps beside its components, as JSON in its index."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""

    @classmethod
    def from_dict(cls, values: Any) -> Any:
        """Inverse of `to_dict`; raises `ValueError` for anything else."""


class SanaLifecycle(DiffusionPipeline):
    """A set of components that is loaded from and saved to one folder.

    Attributes:
        text_settings: how prompts are read; `None` means the published way.
        latent_rgb: map for previews; `None` where there is none.
    """

    component_names: ClassVar[tuple[str, ...]] = (
        "tokenizer",
        "text_encoder",
        "vae",
        "transformer",
        "scheduler",
    )
    published_class: ClassVar[str] = "SanaPipeline"
    """Class name of diffusers that saved folders name."""
    loads: ClassVar[frozenset[str]] = frozenset({"SanaPipeline", "SanaPAGPipeline"})
    """Class names of folders that this pipeline can be loaded from."""
    setting_kinds: ClassVar[Mapping[str, type[Setting]]] = {
        "text_settings": TextSettings,
        "latent_rgb": LatentRGB,
    }
    """Classes of what is kept beside the components, by name."""
    model_cpu_offload_seq = "text_encoder->transformer->vae"  # type: ignore[assignment]

    tokenizer: Any
    text_encoder: Any
    vae: Any
    transformer: Any
    scheduler: Any
    text_settings: TextSettings | None
    latent_rgb: LatentRGB | None

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        dtype: Dtypes = None,
        torch_dtype: Dtypes = None,
        device: torch.device | str | None = None,
        variant: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **components: Any,
    ) -> Self:
        """Load a pipeline.

        An embedded name wins over a folder, a folder over a hub id. Folders in diffusers' layout
        are read as they are; no code is taken from them, and weights must be safetensors.

        Args:
            pretrained_model_name_or_path: embedded name, folder, or `owner/name` on the hub.
            dtype: of all weights, or by component name with `"default"` for the rest; `None` keeps
                each as stored.
            torch_dtype: diffusers' older name of `dtype`.
            device: where the models go; `None` means the CPU.
            variant: file variant, such as `fp16`; components without such files load plain.
            revision: branch, tag or commit on the hub.
            local_files_only: never use the network.
            **components: components to use instead of the folder's: an object, or a folder, hub id
                or embedded name of the component alone; `text_encoder=None, tokenizer=None` leaves
                the text encoder out, for precomputed embeddings. What `setting_kinds` names may be
                given as well.

        Raises:
            WeightsError: the folder or a component does not fit.
            ValueError: unknown arguments.
        """
        if dtype is not None and torch_dtype is not None and dtype != torch_dtype:
            raise ValueError(f"dtype={dtype} and torch_dtype={torch_dtype} differ; give one")
        unknown = sorted(set(components) - set(cls.component_names) - set(cls.setting_kinds))
        if unknown:
            raise ValueError(
                f"{cls.__name__}.from_pretrained has no argument {', '.join(unknown)}; components "
                f"are {', '.join(cls.component_names)}"
            )
        options = LoadOptions(
            dtype=torch_dtype if dtype is None else dtype,
            variant=variant,
            device=device,
            local_files_only=local_files_only,
        )
        options.check_dtypes(cls.component_names)
        folder = resolve_folder(
            pretrained_model_name_or_path,
            allow_patterns=hub_patterns(variant, set(cls.component_names) - set(components)),
            revision=revision,
            local_files_only=local_files_only,
        )
        index = Index.read(folder)
        if index.pipeline not in cls.loads | {cls.__name__}:
            raise WeightsError(
                f"{folder}: holds a {index.pipeline}; {cls.__name__} loads "
                f"{', '.join(sorted(cls.loads))}."
            )
        if variant and not any(folder.glob(f"*/*.{variant}*")):
            raise WeightsError(f"{folder}: no component has files of the variant {variant!r}.")
        settings = {
            name: components[name] if name in components else _setting(name, kind, index)
            for name, kind in cls.setting_kinds.items()
        }
        pipe = cls(**cls._load_components(index, options, components), **settings)
        pipe.register_to_config(_name_or_path=str(pretrained_model_name_or_path))
        return pipe

    @classmethod
    def _load_components(
        cls, index: Index, options: LoadOptions, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        for name in cls.component_names:
            if name not in given:
                check_weights(name, index, options)
        loaded: dict[str, Any] = {}
        for name in cls.component_names:
            if name in given:
                loaded[name] = load_given(name, given[name], index, options)
            else:
                loaded[name] = load_component(name, index, options)
        missing = [
            name
            for name in cls.component_names
            if loaded[name] is None and name not in TEXT_COMPONENTS
        ]
        if missing:
            raise WeightsError(
                f"{index.folder}: has no {', '.join(missing)}; give it to from_pretrained "
                f"({missing[0]}=...)."
            )
        return loaded

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | Path,
        safe_serialization: bool = True,
        variant: str | None = None,
        max_shard_size: int | str = "10GB",
    ) -> None:
        """Write a folder that this package, and for published architectures diffusers, loads.

        The index is written last: a save that was cut short leaves no folder that loads.

        Args:
            save_directory: folder, made if absent.
            safe_serialization: only `True`.
            variant: file variant, such as `fp16`.
            max_shard_size: bytes, or a text such as `5GB`.

        Raises:
            ValueError: pickled weights were asked for, or a component cannot be saved.
        """
        if not safe_serialization:
            raise ValueError("safe_serialization=False is not offered: weights are safetensors")
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        embedded_text = is_embedded_text(self.components["text_encoder"])
        entries: dict[str, Entry] = {}
        for name, component in self._saved_components().items():
            if embedded_text and name in TEXT_COMPONENTS:
                entries[name] = [ZOO_LIBRARY, ZOO_TEXT_ENCODER]
            else:
                entries[name] = save_component(
                    name, component, folder, variant=variant, max_shard_size=max_shard_size
                )
        kept = {name: getattr(self, name) for name in self.setting_kinds}
        settings = {name: value.to_dict() for name, value in kept.items() if value is not None}
        write_index(folder, self.published_class, entries, settings)

    def _saved_components(self) -> dict[str, Any]:
        return dict(self.components)

    @classmethod
    def from_pipe(cls, pipeline: Any, **changes: Any) -> Self:
        """A pipeline of this class that shares the components of another; nothing is copied.

        Args:
            pipeline: a pipeline of this package.
            **changes: components to use instead, and those that the other lacks.

        Raises:
            ValueError: a component is missing.
        """
        parts = {
            name: getattr(pipeline, name) for name in cls.component_names if hasattr(pipeline, name)
        }
        for name in cls.setting_kinds:
            parts[name] = getattr(pipeline, name, None)
        missing = sorted(set(cls.component_names) - set(parts) - set(changes))
        if missing:
            raise ValueError(f"{cls.__name__} also needs {', '.join(missing)}=...")
        shared = cls(**{**parts, **changes})
        shared.register_to_config(_name_or_path=pipeline.name_or_path)
        return shared

    def enable_group_offload(  # type: ignore[override]
        self, onload_device: torch.device | str, offload_type: str = "leaf_level", **options: Any
    ) -> None:
        """Keep weights elsewhere and bring the layers in work to `onload_device`; diffusers' hooks.

        Args:
            onload_device: where to compute.
            offload_type: `leaf_level`, or `block_level` (with `num_blocks_per_group`).
            **options: as in diffusers, such as `offload_device`, `use_stream`,
                `offload_to_disk_path`, `exclude_modules`.

        Raises:
            ValueError: unknown components to exclude.
        """
        from diffusers.hooks import apply_group_offloading

        excluded = options.pop("exclude_modules", None) or []
        excluded = [excluded] if isinstance(excluded, str) else list(excluded)
        unknown = sorted(set(excluded) - set(self.components))
        if unknown:
            raise ValueError(f"exclude_modules {unknown} are no components of this pipeline")
        disk = options.pop("offload_to_disk_path", None)
        for name, component in self.components.items():
            if not isinstance(component, torch.nn.Module) or name in excluded:
                continue
            # Files are named after layers, and layers of two components may have one name.
            place = None if disk is None else str(Path(disk) / name)
            apply_group_offloading(
                component,
                onload_device=torch.device(onload_device),
                offload_type=offload_type,
                offload_to_disk_path=place,
                **options,
            )
        for name in excluded:
            component = getattr(self, name)
            if isinstance(component, torch.nn.Module):
                component.to(onload_device)


def _setting(name: str, kind: type[Setting], index: Index) -> Any:
    return kind.from_dict(index.settings[name]) if name in index.settings else None
