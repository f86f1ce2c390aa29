"""Quantisation of a loaded model to 8 bits, through torchao, checked before it is done.

Weights alone are held in 8 bits and multiplied out in the model's dtype; or activations are rounded
to 8 bits as well, a scale per token, and multiplied in 8 bits with wide sums. What sets the scale
of everything else keeps its dtype: the first and last layers, the embeddings of time, guidance and
text, and all norms, tables (the modulation) and true convolutions. Former 1x1 convolutions are
linear layers here and are quantised like the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sana_like.weights.errors import WeightsError
from sana_like.weights.strict import listing

# Layers with one of these between the dots of their name keep their dtype.
KEPT_LAYERS = (
    "patch_embed",
    "patch_embedding",
    "time_embed",
    "caption_projection",
    "proj_out",
    "input_block",
    "controlnet_blocks",
    "lora_A",
    "lora_B",
)
# Rounded activations pay back over many tokens. The text's keys and values are projected once per
# prompt, from few tokens, and integer products want more rows than a short prompt has.
KEPT_FROM_ACTIVATIONS = ("attn2.to_k", "attn2.to_v")
PROBE_SIDE, PROBE_TOKENS, PROBE_TIME = 8, 16, 500.0


class Scheme(NamedTuple):
    """How layers are quantised."""

    config: str
    """Class of torchao."""
    activations: bool
    """Whether activations are rounded too."""
    multiple: int
    """Widths of a layer must be multiples of this for its product."""
    bound: float
    """Largest error of the first block that is accepted; see `first_block_error`."""


SCHEMES = {
    "int8": Scheme("Int8DynamicActivationInt8WeightConfig", True, 8, 0.05),
    "fp8": Scheme("Float8DynamicActivationFloat8WeightConfig", True, 16, 0.10),
    "int8-weights": Scheme("Int8WeightOnlyConfig", False, 1, 0.03),
    "fp8-weights": Scheme("Float8WeightOnlyConfig", False, 1, 0.08),
}
"""Integers with a scale per output channel (and per token), symmetric; or float8 E4M3, likewise."""


@dataclass(frozen=True)
class QuantizationReport:
    """What `quantize` did.

    Attributes:
        scheme: as asked for.
        quantized: names of the layers that now hold 8 bits per weight.
        kept: names of the linear layers that were left alone.
        bytes_before, bytes_after: size of all parameters.
        error, bound: of the first block, and what is accepted; see `first_block_error`.
    """

    scheme: str
    quantized: tuple[str, ...]
    kept: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    error: float
    bound: float


def quantize(
    model: nn.Module,
    scheme: str = "int8-weights",
    *,
    skip: tuple[str, ...] = (),
    bound: float | None = None,
) -> QuantizationReport:
    """Quantise the linear layers of a transformer, former 1x1 convolutions included, in place.

    First the first block is quantised as a copy and compared with itself; where it is too far off
    nothing is quantised. A quantised model cannot be saved or trained; a LoRA can be attached but
    not fused.

    Args:
        model: a transformer, on its final device, in the dtype in which it is to compute.
        scheme: one of `SCHEMES`.
        skip: further parts of names, as in `KEPT_LAYERS`, of layers to leave alone.
        bound: largest error of the first block to accept; `None` means the scheme's.

    Raises:
        ImportError: torchao is not installed.
        WeightsError: a scheme that is unknown or that this device cannot compute, a model that is
            quantised already or has no layer to quantise, or a first block beyond the bound.
    """
    check_scheme(scheme, _device_of(model))
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    kept = tuple(name for name, layer in linear.items() if _stays(name, layer, scheme, skip))
    chosen = {name: layer for name, layer in linear.items() if name not in kept}
    done = [name for name, layer in chosen.items() if is_quantized(layer.weight)]
    if done:
        raise WeightsError(f"{len(done)} layers are quantised already: {listing(done)}.")
    if not chosen:
        raise WeightsError(f"{type(model).__name__} has no linear layer outside those kept.")
    limit = SCHEMES[scheme].bound if bound is None else bound
    error = first_block_error(model, scheme, set(chosen))
    if not error <= limit:
        raise WeightsError(
            f"{scheme}: the first block would be off by {error:.3g}, more than {limit:.3g}, so the "
            "model was left as it is. Use another scheme "
            f"({', '.join(name for name in SCHEMES if name != scheme)}), or leave out layers that "
            "do not bear it (skip=...)."
        )
    before = parameter_bytes(model)
    _quantize_layers(model, scheme, set(chosen.values()))
    after = parameter_bytes(model)
    model._quantization_scheme = scheme  # type: ignore[assignment]
    return QuantizationReport(scheme, tuple(chosen), kept, before, after, error, limit)


def require_torchao() -> Any:
    """torchao's quantisation.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from torchao import quantization
    except ImportError as error:
        raise ImportError(
            "quantisation needs torchao; install it with: pip install 'sana-like[quant]'"
        ) from error
    return quantization


def scheme_of(model: nn.Module) -> str | None:
    """How `quantize` left a model; `None` where it did not."""
    return getattr(model, "_quantization_scheme", None)


def check_scheme(scheme: str, device: torch.device) -> None:
    """Refuse a scheme that is unknown or that `device` cannot compute.

    Raises:
        WeightsError: names those that it can.
    """
    reasons = unusable(device)
    if scheme in SCHEMES and scheme not in reasons:
        return
    legal = ", ".join(name for name in SCHEMES if name not in reasons)
    why = f"cannot be used here: {reasons[scheme]}" if scheme in reasons else "is unknown"
    raise WeightsError(f"scheme {scheme!r} {why}; legal on {device}: {legal}.")


def unusable(device: torch.device) -> dict[str, str]:
    """Schemes that `device` cannot compute, and why."""
    if device.type == "cuda":
        if torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 9):
            return {}
        return {"fp8": "products of float8 need compute capability 8.9 or newer"}
    return {"fp8": "products of float8 need a GPU; fp8-weights computes in the model's dtype"}


@torch.no_grad()
def first_block_error(model: Any, scheme: str, names: Collection[str]) -> float:
    """How far the first block would be off: relative RMS of what it adds to the stream.

    `|q - b| / |b|`, where `b` is the block's output less its input and `q` the same of a quantised
    copy, on a fixed noise picture and text of fixed noise; sums in fp32. The copy is dropped.

    Args:
        model: a transformer with `transformer_blocks`.
        scheme: one of `SCHEMES`.
        names: layers of the model that would be quantised.

    Raises:
        WeightsError: the model has no blocks.
    """
    if not getattr(model, "transformer_blocks", None):
        raise WeightsError(f"{type(model).__name__} has no transformer_blocks to be checked by.")
    block = model.transformer_blocks[0]
    prefix = "transformer_blocks.0."
    inside = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    args, kwargs = _first_call(model, block)
    rounded = copy.deepcopy(block)
    _quantize_layers(rounded, scheme, {rounded.get_submodule(name) for name in inside})
    exact, found = (
        _stream(one(*args, **kwargs)).float() - args[0].float() for one in (block, rounded)
    )
    return float((found - exact).norm() / exact.norm())


def _first_call(model: Any, block: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the first block is given in a forward pass over fixed noise."""
    config = model.config
    generator = torch.Generator().manual_seed(0)
    device, dtype = _device_of(model), model.dtype

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    patch = config.patch_size
    sides = patch if isinstance(patch, (tuple, list)) else (patch, patch)
    latent = draw(1, config.in_channels, *(PROBE_SIDE * side for side in sides))
    text = draw(1, PROBE_TOKENS, config.caption_channels)
    guidance = {"guidance": 0.45} if getattr(config, "guidance_embeds", False) else {}
    control = {"controlnet_cond": latent} if hasattr(model, "controlnet_blocks") else {}
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    handle = block.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    try:
        model(latent, text, torch.tensor(PROBE_TIME, device=device), **guidance, **control)
    finally:
        handle.remove()
    return calls[0]


def _stream(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _stays(name: str, layer: nn.Linear, scheme: str, skip: tuple[str, ...]) -> bool:
    """Whether a layer keeps its dtype."""
    if {*KEPT_LAYERS, *skip}.intersection(name.split(".")):
        return True
    _, activations, multiple, _ = SCHEMES[scheme]
    if layer.in_features % multiple or layer.out_features % multiple:
        return True
    return activations and name.endswith(KEPT_FROM_ACTIVATIONS)


def is_quantized(weight: Tensor) -> bool:
    """Whether a weight is one of torchao's, not a plain tensor."""
    return type(weight.data) is not Tensor


def parameter_bytes(model: nn.Module) -> int:
    """Bytes that the parameters of `model` take, quantised ones by what they hold."""
    return sum(_nbytes(parameter) for parameter in model.parameters())


def _nbytes(tensor: Any) -> int:
    if not is_quantized(tensor):
        return int(tensor.nbytes)
    names, _ = tensor.data.__tensor_flatten__()
    return sum(getattr(tensor, name).nbytes for name in names)


def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _quantize_layers(model: nn.Module, scheme: str, layers: Collection[nn.Module]) -> None:
    quantization = require_torchao()
    config = getattr(quantization, SCHEMES[scheme].config)
    # The compiler's settings are the whole process's and not this function's to change.
    quantization.quantize_(
        model, config(set_inductor_config=False), lambda layer, _: layer in layers
    )
