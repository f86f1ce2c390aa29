"""The base of all models: how weights come in from published folders and go out to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Self

import torch
from diffusers import __version__ as diffusers_version
from diffusers.configuration_utils import ConfigMixin
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from sana_like.weights.dtypes import floating_dtype
from sana_like.weights.errors import WeightsError
from sana_like.weights.hub import resolve_folder
from sana_like.weights.match import expected_tensors, kernel_layers, require_match
from sana_like.weights.model_config import check_arguments, legal_hints, read_model_config
from sana_like.weights.strict import WEIGHTS_STEM, WeightsReader, find_weights, listing
from sana_like.weights.writer import write_folder

# What constructors raise when a config has values of the wrong type or size.
_CONFIG_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


class StrictModel(ModelMixin, ConfigMixin):
    """A diffusers model that loads strictly and saves what plain diffusers loads.

    Contract for subclasses:

    - `__init__` is decorated with `register_to_config` and takes the published config keys. Keys
      that diffusers' class lacks are listed in `_extension_keys` with their default values; they
      are written to `config.json` only where they differ from it.
    - Loading builds the model under `torch.device("meta")`. So every tensor that is *not* in the
      state dict (position tables and the like) is computed in `__init__` in fp64 or fp32 with an
      explicit `device="cpu"` in each factory call, and registered by
      `register_buffer(..., persistent=False)`. Other attributes hold no tensors.
    - Such tables keep their dtype for good: `from_pretrained(dtype=...)`, `.to(dtype)`, `.half()`
      move them between devices but never round them. Cast the result of using them, not the table.
    - Former 1x1 convolutions are `PointwiseLinear`; their weights are `[O, I]` in memory and
      `[O, I, 1, 1]` in files. Other convolutions held as matrices are `KernelLinear` likewise.
    """

    config_name = "config.json"  # type: ignore[assignment]
    _extension_keys: ClassVar[Mapping[str, Any]] = {}
    _published_class_name: ClassVar[str | None] = None

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        name_or_path: str | Path,
        *,
        subfolder: str | None = None,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        variant: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        cache_dir: str | Path | None = None,
        device: torch.device | str | None = None,
        **config_changes: Any,
    ) -> Self:
        """Load a model from a folder in diffusers' layout.

        Args:
            name_or_path: embedded name, folder, or hub id; see `resolve_folder`.
            subfolder: folder inside it, such as `transformer`.
            dtype: floating type of all parameters; None keeps each as stored (int8: fp32).
            torch_dtype: diffusers' older name of `dtype`.
            variant: file variant, such as `fp16`.
            revision: branch, tag or commit on the hub.
            local_files_only: never use the network.
            cache_dir: where hub files are kept.
            device: where the parameters go; None means the CPU.
            **config_changes: config keys that shall differ from the folder's, such as
                `attention_clip=65504`.

        Returns:
            The model in evaluation mode. No more memory is used than its parameters and one tensor.

        Raises:
            WeightsError: anything about the folder, the config or the weights does not fit.
        """
        target = floating_dtype(dtype, torch_dtype)
        check_arguments(
            config_changes, legal_hints(cls.__init__), f"{cls.__name__}.from_pretrained"
        )
        inside = _plain_subfolder(subfolder)
        root = resolve_folder(
            name_or_path,
            allow_patterns=_model_files(inside, variant),
            revision=revision,
            local_files_only=local_files_only,
            cache_dir=cache_dir,
        )
        folder = root / inside
        config = cls.read_config(folder) | config_changes
        reader = WeightsReader.open(find_weights(folder, variant))
        shared = cls.shared_tensors(config)
        found = {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in shared.items()}
        found |= {key: (info.shape, info.dtype) for key, info in reader.tensors.items()}
        model = cls.build_empty(config, str(folder / "config.json"), len(found))
        expected = expected_tensors(model)
        require_match(expected, found, what=cls.__name__, source=str(reader.source))
        elsewhere = ((key, t) for key, t in shared.items() if key not in reader.tensors)
        tensors = itertools.chain(elsewhere, reader.items())
        model.load_state_dict(
            {key: _placed(tensor, target, device) for key, tensor in tensors}, assign=True
        )
        if device is not None:
            nn.Module.to(model, device)
        return model.eval()

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | Path,
        *,
        safe_serialization: bool = True,
        variant: str | None = None,
        max_shard_size: int | str = "10GB",
        int8: bool = False,
    ) -> None:
        """Write `config.json` and safetensors in the layout that diffusers reads.

        Each file is complete before it takes its name, and weights of an earlier save under the
        same variant are removed last.

        Args:
            save_directory: folder, made if absent.
            safe_serialization: only `True`.
            variant: file variant, such as `fp16`.
            max_shard_size: bytes, or a text such as `5GB`; larger models are written in shards.
            int8: store matrices and kernels as int8 with a scale per output channel and the rest
                as float32, in one file that only this package reads; see `weights.int8`.

        Raises:
            WeightsError: a LoRA or quantisation is still attached, the folder is a file, or pickled
                weights were asked for.
        """
        if not safe_serialization:
            raise WeightsError("safe_serialization=False is not offered: weights are safetensors.")
        shared = self.shared_tensors(self.config)
        own = {
            key: tensor
            for key, tensor in published_state_dict(self).items()
            if key not in shared or not _same(tensor, shared[key])
        }
        write_folder(
            Path(save_directory),
            own,
            self.published_config(),
            variant=variant,
            max_shard_size=max_shard_size,
            int8=int8,
        )

    @classmethod
    def shared_tensors(cls, config: Mapping[str, Any]) -> dict[str, Tensor]:  # noqa: ARG003
        """Tensors in the published layout that files leave out, since another model has them.

        Args:
            config: arguments of `__init__`, which say where they are.

        Raises:
            WeightsError: they are not there.
        """
        return {}

    def load_published_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Copy a state dict in the published layout into this model, strictly.

        Raises:
            WeightsError: keys, shapes or kinds of type differ in either direction.
        """
        found = {key: (tuple(t.shape), t.dtype) for key, t in state_dict.items()}
        require_match(
            expected_tensors(self), found, what=type(self).__name__, source="the state dict"
        )
        self.load_state_dict(dict(state_dict))

    @property
    def config(self) -> Any:
        """The arguments of `__init__`, readable as attributes and as a mapping."""
        return super().config

    @classmethod
    def published_class_name(cls) -> str:
        """The class name that goes into `config.json`: the one diffusers knows."""
        return cls._published_class_name or cls.__name__

    def published_config(self) -> dict[str, Any]:
        """The content of `config.json`: published keys, and extensions that are not at default."""
        config: dict[str, Any] = {
            "_class_name": self.published_class_name(),
            "_diffusers_version": diffusers_version,
        }
        for key in legal_hints(type(self).__init__):
            value = self.config[key]
            if key in self._extension_keys and value == self._extension_keys[key]:
                continue
            config[key] = list(value) if isinstance(value, tuple) else value
        return config

    @classmethod
    def read_config(cls, folder: Path) -> dict[str, Any]:
        """Read and check `config.json` in `folder`; returns the arguments of `__init__`.

        Raises:
            WeightsError: no such file, another class, an unknown key, or a value of the wrong type.
        """
        return read_model_config(folder, {cls.__name__, cls.published_class_name()}, cls.__init__)

    @classmethod
    def build_empty(cls, config: dict[str, Any], where: str, tensors: int) -> Self:
        """A model with parameters on the meta device and its tables on the CPU.

        Args:
            config: arguments of `__init__`.
            where: what a message names as their source.
            tensors: how many tensors there are to fill it.

        Raises:
            WeightsError: the config does not describe such a model.
        """
        for key, value in config.items():
            layers = _total(value) if "layers" in key else 0
            if layers > tensors:
                # Building a billion empty layers would not end; each real one has several tensors.
                raise WeightsError(
                    f"{where}: {key} asks for {layers} layers, the weights hold {tensors} tensors "
                    "in all."
                )
        try:
            with torch.device("meta"):
                model = cls(**config)
        except _CONFIG_FAULTS as error:
            raise WeightsError(f"{where}: does not describe a {cls.__name__}: {error}") from error
        for module, name, table in _tables(model):
            if table.is_meta:
                raise RuntimeError(
                    f"{type(module).__name__}.{name} was computed on the meta device; give its "
                    'factory calls device="cpu" (see StrictModel).'
                )
        return model

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply `fn` as PyTorch does, but keep the dtype of tables outside the state dict."""
        before = list(_tables(self))
        super()._apply(fn, recurse)
        for module, name, table in before:
            moved = module._buffers[name]
            if moved is not None and moved.dtype != table.dtype:
                module._buffers[name] = table.to(moved.device)
        return self


def published_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of `model` in the layout of published files; tensors share memory with it.

    Pointwise weights `[O, I]` become `[O, I, 1, 1]`, other convolutions held as matrices their
    kernels; all else is as in `model.state_dict()`.

    Raises:
        WeightsError: a tensor is no plain one, but quantised or sharded.
    """
    state_dict = model.state_dict()
    strange = [key for key, tensor in state_dict.items() if type(tensor) is not Tensor]
    if strange:
        raise WeightsError(
            f"{len(strange)} tensors are no plain ones ({listing(strange)}): quantised or sharded "
            "weights cannot be saved. Save the model before quantising; int8=True stores it small."
        )
    layers = kernel_layers(model)
    return {
        key: layers[key].publish(tensor.detach()) if key in layers else tensor.detach()
        for key, tensor in state_dict.items()
    }


def _tables(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Non-persistent buffers: owner, name, tensor."""
    return [
        (module, name, table)
        for module in model.modules()
        for name, table in module._buffers.items()
        if table is not None and name in module._non_persistent_buffers_set
    ]


def _same(tensor: Tensor, other: Tensor) -> bool:
    return tensor.dtype == other.dtype and torch.equal(tensor.to(other.device), other)


def _total(value: Any) -> int:
    """The number, or the sum of the numbers in a list; 0 for anything else."""
    numbers = value if isinstance(value, (list, tuple)) else [value]
    return sum(number for number in numbers if isinstance(number, int))


def _placed(tensor: Tensor, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def _plain_subfolder(subfolder: str | None) -> str:
    if not subfolder:
        return ""
    parts = PurePosixPath(subfolder)
    if parts.is_absolute() or ".." in parts.parts or "\\" in subfolder:
        raise WeightsError(f"subfolder={subfolder!r} must lie inside the model's folder.")
    return str(parts)


def _model_files(subfolder: str, variant: str | None) -> list[str]:
    """Glob patterns of the files of one model and one variant in a hub repository."""
    part = f".{variant}" if variant else ""
    names = [
        "config.json",
        f"{WEIGHTS_STEM}{part}.safetensors",
        f"{WEIGHTS_STEM}.safetensors.index{part}.json",
        f"{WEIGHTS_STEM}{part}-*-of-*.safetensors",
        f"{WEIGHTS_STEM}-*-of-*{part}.safetensors",
    ]
    return [f"{subfolder}/{name}" if subfolder else name for name in names]
