"""1x1 convolutions held as linear layers over channels-last tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class PointwiseLinear(nn.Linear):
    """A former 1x1 convolution: `[O, I]` in memory, `[O, I, 1, 1]` in published files.

    Being an `nn.Linear`, it is reached by GEMM kernels, quantisation and LoRA. A state dict in the
    published layout loads as it is; `sana_like.weights.published_state_dict` writes that layout.
    """

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.ndim == 4 and weight.shape[2:] == (1, 1):
            state_dict[prefix + "weight"] = weight.flatten(1)
        super()._load_from_state_dict(state_dict, prefix, *args)
