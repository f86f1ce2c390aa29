"""Weight-only quantisation of a loaded model, through torchao.

Weights are held in 8 bits and multiplied out in the model's dtype, so activations keep their
precision. What sets the scale of everything else stays as it is: the first and last layers, the
embeddings of time, guidance and text, and all norms, tables and true convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sana_like.weights.errors import WeightsError
from sana_like.weights.strict import listing

SCHEMES = ("int8wo", "fp8wo")
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


@dataclass(frozen=True)
class QuantizationReport:
    """What `quantize` did.

    Attributes:
        scheme: as asked for.
        quantized: names of the layers that now hold 8 bits per weight.
        kept: names of the linear layers that were left alone.
        bytes_before, bytes_after: size of all parameters.
    """

    scheme: str
    quantized: tuple[str, ...]
    kept: tuple[str, ...]
    bytes_before: int
    bytes_after: int


def quantize(
    model: nn.Module, scheme: str = "int8wo", *, skip: tuple[str, ...] = ()
) -> QuantizationReport:
    """Quantise the linear layers of `model`, former 1x1 convolutions included, in place.

    A quantised model cannot be saved or trained; a LoRA can be attached but not fused.

    Args:
        model: on its final device, in the dtype in which it is to compute.
        scheme: `int8wo`, symmetric with a scale per output channel, or `fp8wo`, float8 e4m3.
        skip: further parts of names, as in `KEPT_LAYERS`, of layers to leave alone.

    Raises:
        ImportError: torchao is not installed.
        WeightsError: an unknown scheme, a model that is quantised already, or no layer to quantise.
    """
    if scheme not in SCHEMES:
        raise WeightsError(f"scheme {scheme!r} is unknown; legal: {', '.join(SCHEMES)}.")
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    spared = {*KEPT_LAYERS, *skip}
    kept = tuple(name for name in linear if spared.intersection(name.split(".")))
    chosen = {name: layer for name, layer in linear.items() if name not in kept}
    done = [name for name, layer in chosen.items() if is_quantized(layer.weight)]
    if done:
        raise WeightsError(f"{len(done)} layers are quantised already: {listing(done)}.")
    if not chosen:
        raise WeightsError(f"{type(model).__name__} has no linear layer outside those kept.")
    before = parameter_bytes(model)
    _quantize_layers(model, scheme, set(chosen.values()))
    return QuantizationReport(scheme, tuple(chosen), kept, before, parameter_bytes(model))


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


def _quantize_layers(model: nn.Module, scheme: str, layers: set[nn.Linear]) -> None:
    try:
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise ImportError(
            "quantisation needs torchao; install it with: pip install 'sana-like[quant]'"
        ) from error
    kind = Int8WeightOnlyConfig if scheme == "int8wo" else Float8WeightOnlyConfig
    # The compiler's settings are the whole process's and not this function's to change.
    quantize_(model, kind(set_inductor_config=False), lambda layer, _: layer in layers)
