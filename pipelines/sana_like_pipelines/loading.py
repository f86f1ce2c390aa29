"""Components of a pipeline from a folder in diffusers' layout.

Names in `model_index.json` mean classes of this package and of transformers, and nothing else: no
code comes from the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sana_like.weights.errors import WeightsError
from sana_like.weights.files import read_json
from sana_like.weights.header import read_header
from sana_like.weights.hub import resolve_folder
from sana_like.weights.strict import WeightsReader, find_weights

WEIGHT_FOLDERS = ("text_encoder", "vae", "transformer", "controlnet")
MODEL_CLASSES = (
    "AutoencoderDC",
    "AutoencoderDCVideo",
    "SanaControlNetModel",
    "SanaTransformer2DModel",
    "SanaVideoTransformer3DModel",
)
DIFFUSERS_CLASSES = ("AutoencoderKLWan", "AutoencoderKLLTX2Video")
"""Models that are diffusers' own, read by its loader, safetensors only."""
ZOO_LIBRARY = "sana_like.zoo"
ZOO_TEXT_ENCODER = "smollm2"
INDEX_NAME = "model_index.json"
SCHEDULER_NAME = "scheduler_config.json"

Dtypes = torch.dtype | str | Mapping[str, torch.dtype | str] | None
"""One dtype for all, or one by component name with `"default"` for the rest; `None`: as stored."""


@dataclass(frozen=True)
class LoadOptions:
    """How components are loaded."""

    dtype: Dtypes = None
    variant: str | None = None
    device: torch.device | str | None = None
    revision: str | None = None
    local_files_only: bool = False

    def check_dtypes(self, components: Iterable[str]) -> None:
        """Refuse names and dtypes that mean nothing, before anything is loaded.

        Raises:
            ValueError: not the name of a floating dtype, or of none of `components`.
        """
        components = list(components)
        named = self.dtype if isinstance(self.dtype, Mapping) else {}
        unknown = sorted(set(named) - {*components, "default"})
        if unknown:
            raise ValueError(
                f"dtype names {', '.join(unknown)}; components are {', '.join(components)}, and "
                "'default' stands for the rest"
            )
        for name in components:
            self.dtype_of(name)

    def dtype_of(self, component: str) -> torch.dtype | None:
        """The dtype of one component, `None` for as stored.

        Raises:
            ValueError: not the name of a floating dtype.
        """
        given = self.dtype
        if isinstance(given, Mapping):
            given = given.get(component, given.get("default"))
        if isinstance(given, str):
            given = getattr(torch, given.removeprefix("torch."), given)
        if given is not None and not (isinstance(given, torch.dtype) and given.is_floating_point):
            raise ValueError(
                f"dtype={given!r} for {component} is no floating dtype; legal: float32, bfloat16, "
                "float16"
            )
        return given


@dataclass
class Index:
    """A `model_index.json`: which class every component is, and settings of the pipeline."""

    folder: Path
    pipeline: str
    components: dict[str, tuple[str | None, str | None]]
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Read the index in `folder`.

        Raises:
            WeightsError: there is none, or it is not an index.
        """
        path = folder / INDEX_NAME
        if not path.is_file():
            raise WeightsError(f"{folder}: has no {INDEX_NAME}, so it is no pipeline folder.")
        values = read_json(path)
        pipeline = values.get("_class_name")
        if not isinstance(pipeline, str):
            raise WeightsError(f"{path}: names no pipeline class (_class_name).")
        components: dict[str, tuple[str | None, str | None]] = {}
        settings: dict[str, Any] = {}
        for name, value in values.items():
            pair = isinstance(value, list) and len(value) == 2
            if name.startswith("_"):
                continue
            if pair and all(part is None or isinstance(part, str) for part in value):
                components[name] = (value[0], value[1])
            else:
                settings[name] = value
        return cls(folder, pipeline, components, settings)


def hub_patterns(variant: str | None, components: Iterable[str] = WEIGHT_FOLDERS) -> list[str]:
    """Which files of a hub repository a pipeline needs.

    Other variants are left there, and so are the weights of components that are not wanted.
    """
    patterns = ["*.json", "*.txt", "*.model", "*.jinja"]
    for folder in components:
        for each in [None, variant] if variant else [None]:
            patterns += [f"{folder}/{name}" for name in _weight_patterns(folder, each)]
    return list(dict.fromkeys(patterns))


def _weight_patterns(component: str, variant: str | None) -> list[str]:
    """Names of the weights of one component, in one file or in shards."""
    stem = "model" if component == "text_encoder" else "diffusion_pytorch_model"
    part = f".{variant}" if variant else ""
    return [
        f"{stem}{part}.safetensors",
        f"{stem}{part}-*-of-*.safetensors",
        f"{stem}-*-of-*{part}.safetensors",
    ]


def check_weights(name: str, index: Index, options: LoadOptions) -> None:
    """Read the headers of a component's weights; nothing is loaded.

    So that a broken file is refused at once, and not after gigabytes of other components.

    Raises:
        WeightsError: files are missing or broken.
    """
    library, class_name = index.components.get(name, (None, None))
    folder = index.folder / name
    if library == ZOO_LIBRARY or not folder.is_dir():
        return
    variant = _variant_in(folder, options.variant)
    if class_name in (*MODEL_CLASSES, *DIFFUSERS_CLASSES):
        WeightsReader.open(find_weights(folder, variant))
    elif library == "transformers" and name == "text_encoder":
        for pattern in _weight_patterns(name, variant):
            for path in folder.glob(pattern):
                read_header(path)


def load_component(name: str, index: Index, options: LoadOptions) -> Any:
    """Load the component `name` that the index describes; `None` where it has none.

    Raises:
        WeightsError: the class is none that a pipeline here can use, or its files do not fit.
    """
    library, class_name = index.components.get(name, (None, None))
    if name == "tokenizer" and class_name is None:
        # The embedded tokenizer and encoder come from one file, and one entry says so.
        library, class_name = index.components.get("text_encoder", (None, None))
        class_name = class_name if library == ZOO_LIBRARY else None
    if class_name is None:
        return None
    if library == ZOO_LIBRARY:
        return _load_from_zoo(name, class_name, options)
    folder = index.folder / name
    if not folder.is_dir():
        raise WeightsError(f"{index.folder}: the component {name!r} ({class_name}) has no folder.")
    if class_name in (*MODEL_CLASSES, *DIFFUSERS_CLASSES):
        return load_model(class_name, name, folder, options)
    if library == "transformers":
        return load_transformers(class_name, name, folder, options)
    if (folder / SCHEDULER_NAME).is_file():
        return load_scheduler(folder)
    raise WeightsError(
        f"{index.folder / INDEX_NAME}: {name!r} is a {library}.{class_name}; known are "
        f"{', '.join((*MODEL_CLASSES, *DIFFUSERS_CLASSES))}, schedulers, and classes of "
        "transformers."
    )


def load_given(name: str, given: Any, index: Index, options: LoadOptions) -> Any:
    """A component given to `from_pretrained`: an object, or where to load it from.

    Args:
        name: such as `"transformer"`.
        given: an object as it is, or a folder, hub id or embedded name of this component alone.
        index: of the pipeline, for the class of the component.
        options: how to load.

    Raises:
        WeightsError: the place does not hold such a component.
    """
    if isinstance(given, (list, tuple)):
        return [load_given(name, item, index, options) for item in given]
    if not isinstance(given, (str, Path)):
        return given
    folder = resolve_folder(given, revision=None, local_files_only=options.local_files_only)
    if name == "scheduler":
        return load_scheduler(folder)
    defaults = {
        "vae": "AutoencoderDC",
        "transformer": "SanaTransformer2DModel",
        "controlnet": "SanaControlNetModel",
    }
    if name in defaults:
        return load_model(_class_in(folder) or defaults[name], name, folder, options)
    class_name = index.components.get(name, (None, None))[1]
    fallback = "AutoTokenizer" if name == "tokenizer" else "AutoModel"
    return load_transformers(class_name or fallback, name, folder, options)


def load_model(class_name: str, name: str, folder: Path, options: LoadOptions) -> Any:
    """A model from its own folder."""
    if class_name in DIFFUSERS_CLASSES:
        return _load_diffusers(class_name, name, folder, options)
    import sana_like

    model_class = getattr(sana_like, class_name)
    return model_class.from_pretrained(
        folder,
        dtype=options.dtype_of(name),
        variant=_variant_in(folder, options.variant),
        device=options.device,
    )


def _load_diffusers(class_name: str, name: str, folder: Path, options: LoadOptions) -> Any:
    import diffusers

    model = getattr(diffusers, class_name).from_pretrained(
        folder,
        torch_dtype=options.dtype_of(name),
        variant=_variant_in(folder, options.variant),
        use_safetensors=True,
        local_files_only=True,
    )
    return model.to(options.device).eval() if options.device is not None else model.eval()


def _class_in(folder: Path) -> str | None:
    """The class that a model's `config.json` names, where it is one that is read here."""
    path = folder / "config.json"
    named = read_json(path).get("_class_name") if path.is_file() else None
    return named if named in (*MODEL_CLASSES, *DIFFUSERS_CLASSES) else None


def load_scheduler(folder: Path) -> Any:
    """The scheduler that `scheduler_config.json` asks for.

    Raises:
        WeightsError: no such file.
        ValueError: a setting that would not be honoured.
    """
    from sana_like.schedulers import from_published

    path = folder / SCHEDULER_NAME
    if not path.is_file():
        raise WeightsError(f"{folder}: has no {SCHEDULER_NAME}.")
    return from_published(read_scheduler_config(path))


def read_scheduler_config(path: Path) -> dict[str, Any]:
    """Read `scheduler_config.json`, in which diffusers writes infinities that JSON has no form for.

    Raises:
        WeightsError: it is no JSON object.
    """
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path}: expected a JSON object, found {type(config).__name__}.")
    return config


def load_transformers(class_name: str, name: str, folder: Path, options: LoadOptions) -> Any:
    """A tokenizer or text encoder of transformers; safetensors only, never remote code."""
    import transformers

    loaded_class: Any = getattr(transformers, class_name, None)
    if name == "tokenizer" and loaded_class is None:
        # Some releases drop the suffix of the fast tokenizers' names.
        loaded_class = getattr(transformers, class_name.removesuffix("Fast"), None)
    if not hasattr(loaded_class, "from_pretrained"):
        raise WeightsError(f"{folder}: transformers has no class {class_name!r} for {name!r}.")
    common = {"local_files_only": True, "trust_remote_code": False}
    if name == "tokenizer":
        return loaded_class.from_pretrained(folder, **common)
    model = loaded_class.from_pretrained(
        folder,
        dtype=options.dtype_of(name) or "auto",
        variant=_variant_in(folder, options.variant),
        use_safetensors=True,
        **common,
    )
    return model.to(options.device).eval() if options.device is not None else model.eval()


def _load_from_zoo(name: str, entry: str, options: LoadOptions) -> Any:
    if name == "vae":
        folder = resolve_folder(entry, local_files_only=True)
        return load_model(_class_in(folder) or "AutoencoderDC", name, folder, options)
    if name not in ("text_encoder", "tokenizer") or entry != ZOO_TEXT_ENCODER:
        raise WeightsError(f"the embedded {entry!r} cannot be the component {name!r}.")
    from sana_like.text import load_smollm2

    dtype = options.dtype_of("text_encoder") or torch.float32
    tokenizer, encoder = load_smollm2(dtype, options.device or "cpu")
    return tokenizer if name == "tokenizer" else encoder


def _variant_in(folder: Path, variant: str | None) -> str | None:
    """`variant` where the folder has files of it; a component without them is loaded plain."""
    return variant if variant and any(folder.glob(f"*.{variant}*")) else None
