"""Ways to make a pipeline faster that hold for all of its calls."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from sana_like.weights.quantize import check_scheme, is_quantized, quantize, scheme_of
from sana_like_pipelines.compile_clock import CompileClock, CompileReport, is_compiled
from sana_like_pipelines.step_graphs import StepGraphs

_LOG = logging.getLogger(__name__)


class SpeedMixin:
    """Adds `speed_up` to a pipeline."""

    transformer: Any
    compile_report: CompileReport | None = None
    """What compiling cost and saves, of the latest size that was new."""
    _graphs: StepGraphs | None = None
    _clock: CompileClock | None = None

    def speed_up(
        self,
        *,
        quantize: str | None = None,
        attention_backend: str | None = None,
        compile: bool = False,
        cuda_graphs: bool = False,
    ) -> None:
        """Switch on ways to make the transformer faster; recipes say which are on.

        Everything is checked before anything is changed. None of it is exact but CUDA graphs:
        quantisation changes pictures (`docs/quantization.md`), the others round differently.

        Args:
            quantize: a scheme of `sana_like.weights.quantize`: `int8`, `fp8`, `int8-weights` or
                `fp8-weights`; for good. Load adapters afterwards.
            attention_backend: what computes the attention to the text, see
                `sana_like.attention.backends`.
            compile: compile the repeated blocks. The first picture of each size then waits for the
                compiler, tens of seconds on a GPU and more on a CPU; `compile_report`, which is
                also logged, says what that took and what it saves. The second evaluation of each
                new size is made twice for it, once not compiled.
            cuda_graphs: capture an evaluation and replay it at every step; needs CUDA, bf16 or fp32
                and weights that stay on the device.

        Raises:
            ValueError: one of them cannot act here.
            ImportError: torchao is not installed.
        """
        device = self._execution_device  # type: ignore[attr-defined]
        if attention_backend is not None:
            from sana_like.attention.backends import check_backend

            check_backend(attention_backend, device, self.transformer.dtype)
        if quantize is not None:
            check_scheme(quantize, device)
            if _is_offloaded(self.transformer):
                raise ValueError("quantize before offloading: the weights are not there to be read")
        if cuda_graphs:
            self._check_graphs(device, quantize or scheme_of(self.transformer))
        if quantize is not None:
            _quantize(self.transformer, quantize)
        if attention_backend is not None:
            self.transformer.set_attention_backend(attention_backend)
        if compile and not is_compiled(self.transformer):
            self.transformer.compile_repeated_blocks()
            self._clock = CompileClock(self.transformer)
        if cuda_graphs and self._graphs is None:
            self._graphs = StepGraphs()

    def speed_record(self) -> dict[str, Any]:
        """What of `speed_up` is on, for the recipe; what is off is left out."""
        backend = getattr(self.transformer, "attention_backend", "native")
        facts = {
            "quantize": scheme_of(self.transformer),
            "attention_backend": None if backend == "native" else backend,
            "compile": is_compiled(self.transformer) or None,
            "cuda_graphs": self._graphs is not None or None,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """The transformer's `forward`, as fast as was asked for; a tuple."""
        run = self.transformer if self._graphs is None else self._replayed
        if self._clock is None:
            return run(*args, **kwargs)
        return self._clock(run, *args, **kwargs)

    def _replayed(self, *args: Any, **kwargs: Any) -> tuple[Any]:
        assert self._graphs is not None
        return (self._graphs(self.transformer, *args, **kwargs),)

    def _begin_evaluations(self, first_block_cache: float | None) -> None:
        """Refuse what graphs cannot do, and forget those of other weights."""
        if self._clock is not None:
            self._clock.begin()
        if self._graphs is None:
            return
        if first_block_cache is not None or getattr(self.transformer, "is_cache_enabled", False):
            raise ValueError(
                "a cache skips blocks by what it sees, which CUDA graphs cannot: leave one of them "
                "out"
            )
        device = self._execution_device  # type: ignore[attr-defined]
        self._check_graphs(device, scheme_of(self.transformer))
        scales = tuple(self.lora_scales().items())  # type: ignore[attr-defined]
        self._graphs.require((weights_mark(self.transformer), scales))

    def _end_evaluations(self, pictures: int) -> None:
        report = None if self._clock is None else self._clock.report(pictures)
        if report is not None:
            self.compile_report = report
            _LOG.info("%s", report)

    def _check_graphs(self, device: torch.device, scheme: str | None) -> None:
        if device.type != "cuda":
            raise ValueError(
                f"cuda_graphs needs a CUDA device, and this pipeline computes on {device}: move it "
                "there with pipe.to('cuda'), or leave cuda_graphs out"
            )
        if self.transformer.dtype == torch.float16:
            raise ValueError(
                "cuda_graphs needs bfloat16 or float32: in float16 every evaluation is watched for "
                "overflow, which a graph cannot be"
            )
        if scheme == "int8":
            raise ValueError(
                "cuda_graphs does not go together with int8: torchao looks at its integer products "
                "while they run; use fp8 or int8-weights"
            )
        if _is_offloaded(self.transformer):
            raise ValueError(
                "cuda_graphs needs weights that stay on the device, and these are offloaded: leave "
                "one of them out"
            )


def _quantize(transformer: Any, scheme: str) -> None:
    report = quantize(transformer, scheme)
    _LOG.info(
        "%s: %d layers quantised, the first block off by %.3g of %.3g allowed, %.2f of the bytes",
        scheme, len(report.quantized), report.error, report.bound,
        report.bytes_after / report.bytes_before,
    )  # fmt: skip


def weights_mark(model: nn.Module) -> Hashable:
    """Changes when weights are put into other memory, as by `to` or by an adapter."""
    return tuple(
        id(parameter) if is_quantized(parameter) else parameter.data_ptr()
        for parameter in model.parameters()
    )


def _is_offloaded(model: nn.Module) -> bool:
    for module in model.modules():
        hooks = getattr(module, "_diffusers_hook", None)
        if hasattr(module, "_hf_hook") or (hooks and hooks.get_hook("group_offloading")):
            return True
    return False
