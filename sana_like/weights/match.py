"""Comparison of the tensors a model expects with the tensors a file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from sana_like.layers.pointwise import KernelLinear
from sana_like.weights.errors import WeightsError
from sana_like.weights.strict import listing


@dataclass(frozen=True)
class Expected:
    """What a model needs under one key: published shape, and the floating or exact type.

    `held` is the shape in memory, which is accepted as well.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    held: tuple[int, ...]

    def accepts_shape(self, shape: tuple[int, ...]) -> bool:
        """Published shape, or that in memory: `[O, I]` for a pointwise weight `[O, I, 1, 1]`."""
        return shape in (self.shape, self.held)

    def accepts_dtype(self, dtype: torch.dtype) -> bool:
        """Any floating type for a floating tensor, the same type for the others."""
        return dtype.is_floating_point if self.dtype.is_floating_point else dtype == self.dtype


@dataclass
class KeyReport:
    """Differences between expected and found keys; `__str__` is the text of an error."""

    matched: int = 0
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every key matched in both directions."""
        return not (self.missing or self.unexpected or self.misfits)

    def __str__(self) -> str:
        parts = [f"{self.matched} tensors match"]
        for name in ("missing", "unexpected", "misfits"):
            keys = getattr(self, name)
            if keys:
                parts.append(f"{len(keys)} {name.removesuffix('s')}: {listing(keys)}")
        return "; ".join(parts)


def kernel_layers(model: nn.Module) -> dict[str, KernelLinear]:
    """Layers whose weights are matrices in the model and kernels in published files, by key."""
    return {
        f"{name}.weight" if name else "weight": module
        for name, module in model.named_modules()
        if isinstance(module, KernelLinear)
    }


def expected_tensors(model: nn.Module) -> dict[str, Expected]:
    """What the published layout of `model` holds, by key."""
    layers = kernel_layers(model)
    result = {}
    for key, tensor in model.state_dict().items():
        published = layers[key].publish(tensor) if key in layers else tensor
        result[key] = Expected(tuple(published.shape), tensor.dtype, tuple(tensor.shape))
    return result


def compare(
    expected: Mapping[str, Expected], found: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
) -> KeyReport:
    """Compare keys, shapes and types in both directions; `found` gives shape and dtype by key."""
    report = KeyReport()
    report.unexpected = [key for key in found if key not in expected]
    for key, want in expected.items():
        if key not in found:
            report.missing.append(key)
            continue
        shape, dtype = found[key]
        if not want.accepts_shape(shape):
            report.misfits.append(f"{key} expected {list(want.shape)}, found {list(shape)}")
        elif not want.accepts_dtype(dtype):
            report.misfits.append(f"{key} expected {want.dtype}, found {dtype}")
        else:
            report.matched += 1
    return report


def require_match(
    expected: Mapping[str, Expected],
    found: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    *,
    what: str,
    source: str,
) -> KeyReport:
    """`compare`, and raise if anything differs.

    Raises:
        WeightsError: naming `source`, the model `what`, and the missing, unexpected and misshapen
            keys with the expected and found shapes.
    """
    report = compare(expected, found)
    if not report.clean:
        raise WeightsError(
            f"{source}: does not fit {what} as its config.json describes it: {report}. "
            f"{_remedy(report, found)}"
        )
    return report


def _remedy(report: KeyReport, found: Mapping[str, object]) -> str:
    if any(key.endswith((".attn.qkv.weight", ".qkv.conv.weight")) for key in found):
        return "The keys are those of an original checkpoint: run `sana-like convert` on it."
    if any(".lora_" in key for key in found):
        return "The keys are those of an adapter: load it with load_lora on the base model."
    if report.matched == 0:
        return "No tensor matches: these are the weights of another model."
    return "Use the weights and the config.json of one release together."
