"""From checkpoints as their authors saved them to a folder in diffusers' layout.

A checkpoint may be a pickle, so it is opened in a process of its own, with `weights_only`: nothing
but tensors is built from it. `convert_checkpoint` starts that process;
`python -m sana_like.weights.convert` is it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sana_like.weights.errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor

    from sana_like.weights.architecture import Architecture
    from sana_like.weights.model import StrictModel

# A latent pixel is 32 pixels; only the models for 2048 and 4096 pixels have a table of positions.
_PIXELS_PER_LATENT = 32
_INTERPOLATION_SCALES = {64: 1.0, 128: 2.0}
# Shapes do not tell the config of these; a preset of the same size does.
_TOLD_BY_SIZE = ("AutoencoderDC", "SanaVideoTransformer3DModel")


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        class_name: of the model in the new folder.
        folder: where it is.
        presets: published shapes of that size.
        config: content of the new `config.json`.
        mapped: tensors read and used.
        written: tensors written; more than `mapped` where fused ones were cut.
        dropped: keys that inference does not need.
        ignored: parts of the file beside the weights, such as an optimiser.
        num_parameters: in the new folder.
    """

    class_name: str
    folder: str
    presets: list[str]
    config: dict[str, Any]
    mapped: int
    written: int
    dropped: list[str]
    ignored: list[str]
    num_parameters: int


def convert_checkpoint(
    source: str | Path,
    folder: str | Path,
    *,
    image_size: int | None = None,
    preset: str | None = None,
    config: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> ConversionReport:
    """Convert the weights of a transformer, a ControlNet or a DC-AE in a process of its own.

    Args:
        source: `.pth`, `.pt`, `.bin`, `.ckpt` or `.safetensors` with NVlabs' or diffusers' keys.
        folder: the new model folder.
        image_size: side in pixels that a transformer was trained for, where the file does not
            tell: 512, 1024, 2048 or 4096.
        preset: published shape to take the config from, such as `dc-ae-f32c32-mix-1.0` where
            several have the same tensors.
        config: config keys that win over everything else.
        dtype: floating type to write, such as `bfloat16`; None keeps the stored one.

    Raises:
        WeightsError: the file is missing, holds more than tensors, has keys that no table knows,
            does not fit the model, or leaves a question open; nothing is written then.
    """
    options = {
        "image_size": image_size,
        "preset": preset,
        "config": dict(config or {}),
        "dtype": dtype,
    }
    # The same libraries as here; -P: none that happens to lie in the working folder.
    paths = [path for path in sys.path if os.path.isabs(path)]  # noqa: PTH117 - strings
    result = subprocess.run(
        [sys.executable, "-P", "-m", "sana_like.weights.convert"],
        input=json.dumps({"source": str(source), "folder": str(folder), **options}),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        answer = json.loads(result.stdout.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError) as error:
        tail = result.stderr.strip().splitlines()[-1:] or [f"exit code {result.returncode}"]
        raise WeightsError(f"{source}: the conversion process failed: {tail[0]}") from error
    if "error" in answer:
        raise WeightsError(answer["error"])
    return ConversionReport(**answer)


def convert_here(
    source: Path,
    folder: Path,
    *,
    image_size: int | None = None,
    preset: str | None = None,
    config: Mapping[str, Any] | None = None,
    dtype: str | None = None,
) -> ConversionReport:
    """`convert_checkpoint` in this process; for sources that are trusted, and for that process."""
    from sana_like.weights.architecture import guess_architecture
    from sana_like.weights.checkpoint import read_checkpoint
    from sana_like.weights.dtypes import floating_dtype
    from sana_like.weights.writer import write_folder

    target = floating_dtype(dtype)
    found, ignored = read_checkpoint(source)
    tensors, dropped = _translate(found, source)
    guess = guess_architecture({key: tuple(value.shape) for key, value in tensors.items()})
    model_class = _model_class(guess.class_name, source)
    settings = _base_config(guess, tensors, model_class, source, preset)
    settings |= _size_config(guess, found, image_size, settings)
    settings |= config or {}
    _require_complete(guess, settings, source)
    model = model_class.build_empty(settings, str(source), len(tensors))
    tensors = _checked(tensors, model, source, target)
    published = model.published_config()
    write_folder(folder, tensors, published)
    return ConversionReport(
        class_name=str(guess.class_name),
        folder=str(folder),
        presets=list(guess.presets),
        config=published,
        mapped=len(found) - len(dropped),
        written=len(tensors),
        dropped=dropped,
        ignored=ignored,
        num_parameters=guess.num_parameters,
    )


def _translate(found: Mapping[str, Tensor], source: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors under published keys, and the keys that were dropped."""
    from sana_like.weights.keymaps import find_map
    from sana_like.weights.strict import listing

    table = find_map(found)
    if table is None:
        return dict(found), []  # published keys, or nothing that is known here
    tensors: dict[str, Tensor] = {}
    dropped, unknown = [], []
    for key, tensor in found.items():
        targets = table.translate(key)
        if targets is None:
            unknown.append(key)
        elif not targets:
            dropped.append(key)
        elif len(targets) == 1:
            tensors[targets[0]] = tensor
        elif tensor.ndim == 0 or tensor.shape[0] % len(targets):
            raise WeightsError(f"{source}: {key} {list(tensor.shape)} has no {len(targets)} parts.")
        else:
            tensors.update(zip(targets, tensor.chunk(len(targets)), strict=True))
    if unknown:
        raise WeightsError(
            f"{source}: {len(unknown)} of {len(found)} keys are in no table for "
            f"{table.class_name}: {listing(unknown)}."
        )
    return tensors, dropped


def _model_class(name: str | None, source: Path) -> type[StrictModel]:
    import sana_like

    if name is None or name not in dir(sana_like):
        what = f"the keys of a {name}, which" if name else "keys that no model here has; it"
        raise WeightsError(
            f"{source}: has {what} cannot be converted. Known are transformers of pictures and "
            "clips, ControlNets and DC-AE with NVlabs' or diffusers' keys."
        )
    found: type[StrictModel] = getattr(sana_like, name)
    return found


def _base_config(
    guess: Architecture,
    tensors: Mapping[str, Tensor],
    model_class: type[StrictModel],
    source: Path,
    preset: str | None,
) -> dict[str, Any]:
    """Config from the preset asked for, a `config.json` beside the file, or the shapes."""
    from sana_like.weights.architecture import preset_config, transformer_config

    if preset is not None:
        return preset_config(preset)
    if (source.parent / "config.json").is_file():
        return model_class.read_config(source.parent)
    if guess.class_name not in _TOLD_BY_SIZE:
        try:
            return transformer_config({key: tuple(value.shape) for key, value in tensors.items()})
        except (KeyError, ValueError) as error:
            raise WeightsError(f"{source}: lacks a tensor of every such model: {error}.") from error
    # Presets of one size may differ in nothing but the scaling factor, which no tensor tells.
    configs = [preset_config(name) for name in guess.presets] or [{}]
    if any(config != configs[0] for config in configs):
        configs[0].pop("scaling_factor")
    return configs[0]


def _size_config(
    guess: Architecture,
    found: Mapping[str, Tensor],
    image_size: int | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """`sample_size` and what follows from it, if it is asked for or the file tells it."""
    if guess.class_name in _TOLD_BY_SIZE:
        return {}
    if image_size is not None:
        if image_size <= 0 or image_size % _PIXELS_PER_LATENT:
            raise WeightsError(f"image_size={image_size} must be a positive multiple of 32.")
        size = image_size // _PIXELS_PER_LATENT
    elif "sample_size" in settings or "pos_embed" not in found:
        return {}
    else:
        tokens = found["pos_embed"].shape[-2]
        size = math.isqrt(tokens) * settings["patch_size"]
    return {"sample_size": size, "interpolation_scale": _INTERPOLATION_SCALES.get(size)}


def _require_complete(guess: Architecture, settings: Mapping[str, Any], source: Path) -> None:
    """What shapes cannot tell must not be left to a default."""
    sizes = f"the size of {', '.join(guess.presets)}" if guess.presets else "no published size"
    if guess.class_name == "AutoencoderDC":
        needed = {"scaling_factor": f"it has {sizes}; name a preset or give its config"}
    elif guess.class_name in _TOLD_BY_SIZE:
        needed = {"sample_size": f"it has {sizes}; name a preset or give its config"}
    else:
        heads = f"it has {sizes}; give it in config"
        needed = {
            "sample_size": "give image_size: 512, 1024, 2048 or 4096",
            "num_cross_attention_heads": heads,
            "cross_attention_head_dim": heads,
        }
    for key, remedy in needed.items():
        if key not in settings:
            raise WeightsError(f"{source}: does not tell {key}; {remedy}.")


def _checked(
    tensors: Mapping[str, Tensor], model: StrictModel, source: Path, dtype: Any
) -> dict[str, Tensor]:
    """The tensors in their final shape and type, once they fit `model` in both directions."""
    import torch

    from sana_like.weights.match import expected_tensors, require_match

    expected = expected_tensors(model)
    ready = {}
    for key, tensor in tensors.items():
        want = expected.get(key)
        if want is not None and len(want.shape) == 2 and tensor.shape[2:] == (1, 1):
            ready[key] = tensor.flatten(1)  # a 1x1 convolution that diffusers holds as a matrix
        else:
            ready[key] = tensor
    shapes = {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in ready.items()}
    require_match(expected, shapes, what=type(model).__name__, source=str(source))
    for key, tensor in ready.items():
        if not tensor.is_floating_point():
            continue
        if not torch.isfinite(tensor).all():
            raise WeightsError(f"{source}: {key} holds NaN or infinity.")
        ready[key] = tensor.to(dtype or tensor.dtype)
    return ready


def _main() -> None:
    """Read one request as JSON, answer with one line of JSON: the report, or `error`."""
    request = json.load(sys.stdin)
    source, folder = Path(request.pop("source")), Path(request.pop("folder"))
    try:
        answer = asdict(convert_here(source, folder, **request))
    except ValueError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _main()
