"""A video transformer that begins as an image transformer: its config and its weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.weights.model import StrictModel, published_state_dict

_BLOCKS = "transformer_blocks."
_PATCH = ("patch_embed.proj.", "patch_embedding.")
_OVER_TIME = ".conv_temp."
# What the two classes call alike and mean alike; patches and positions differ.
_NOT_SHARED = frozenset({"patch_size", "interpolation_scale"})


def video_config(
    image: SanaTransformer2DModel, changes: Mapping[str, Any], legal: Collection[str]
) -> dict[str, Any]:
    """Config of a video transformer like an image transformer, with some keys changed.

    Args:
        image: the model of pictures.
        changes: keys of the video class.
        legal: all keys of the video class.

    Raises:
        ValueError: the model of pictures has another time scale, or fewer blocks than asked for.
    """
    config: Any = image.config
    if config.timestep_scale != 1.0:
        raise ValueError(
            f"the image transformer has timestep_scale={config.timestep_scale}; a video "
            "transformer reads times from 0 to 1000 as they are"
        )
    kept = {key: config[key] for key in legal if key in config and key not in _NOT_SHARED}
    side = config.patch_size
    merged = kept | {"patch_size": (1, side, side)} | dict(changes)
    if merged["num_layers"] > config.num_layers:
        raise ValueError(
            f"num_layers={merged['num_layers']} exceeds the {config.num_layers} blocks of the "
            "image transformer; ask for as many or fewer"
        )
    return merged


def video_weights(image: SanaTransformer2DModel, model: StrictModel) -> dict[str, Tensor]:
    """Weights for `model` in the published layout: those of `image`, its own over time.

    Raises:
        ValueError: a shape differs.
    """
    source, own = published_state_dict(image), published_state_dict(model)
    chosen = chosen_blocks(image.config.num_layers, model.config.num_layers)
    weights = {}
    for key, tensor in own.items():
        if _OVER_TIME in key:
            weights[key] = tensor
            continue
        name = key
        if key.startswith(_BLOCKS):
            index, _, rest = key.removeprefix(_BLOCKS).partition(".")
            name = f"{_BLOCKS}{chosen[int(index)]}.{rest}"
        elif key.startswith(_PATCH[1]):
            name = key.replace(_PATCH[1], _PATCH[0], 1)
        given = source.get(name)
        if given is not None and tensor.ndim == given.ndim + 1:
            given = given.unsqueeze(2)  # a kernel over one frame: [O, I, 1, Y, X]
        if given is None or given.shape != tensor.shape:
            shape = "no such weight" if given is None else list(given.shape)
            raise ValueError(
                f"{key} has shape {list(tensor.shape)}, the image transformer {shape}; leave out "
                "of the changes what sets widths, heads and channels"
            )
        weights[key] = given
    return weights


def chosen_blocks(there: int, wanted: int) -> list[int]:
    """Which of `there` blocks become `wanted` ones: evenly spaced, with first and last."""
    if wanted == 1:
        return [0]
    return [round(index * (there - 1) / (wanted - 1)) for index in range(wanted)]
