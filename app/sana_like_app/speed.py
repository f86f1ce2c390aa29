"""What makes a run faster, as it is asked for, and whether the machine can do it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sana_like_app.setup import Placement


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Arguments of `speed_up` of a pipeline."""

    quantize: str | None = None
    attention_backend: str | None = None
    compile: bool = False
    cuda_graphs: bool = False

    def chosen(self) -> dict[str, Any]:
        """Those that are on."""
        return {name: value for name, value in asdict(self).items() if value}

    def check(self, placement: Placement) -> None:
        """Refuse what the machine cannot do; no model is loaded.

        Raises:
            ValueError: names what it can.
            ImportError: torchao is not installed.
        """
        if self.quantize is not None:
            from sana_like.weights.quantize import check_scheme, require_torchao

            check_scheme(self.quantize, placement.device)
            require_torchao()
        if self.attention_backend is not None:
            from sana_like.attention.backends import check_backend

            check_backend(self.attention_backend, placement.device, placement.dtype)
        if self.cuda_graphs and placement.device.type != "cuda":
            raise ValueError(
                f"--cuda-graphs needs a CUDA device, and this is {placement.device}; leave it out"
            )
        if placement.offload != "none" and (self.quantize or self.cuda_graphs):
            option = "--quantize" if self.quantize else "--cuda-graphs"
            raise ValueError(
                f"{option} needs weights that stay where they are; use it without --offload"
            )
