"""A whole denoise against diffusers on the same weights, in one process: A-B-C-D-E-E-D-C-B-A."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

PRESET = "sana-1.5-1.6b-1024"
GUIDANCE = 4.5
# Real tokens of the prompt and of the empty negative prompt, in as many slots as pipelines give.
PROMPT, NEGATIVE, SLOTS = 40, 2, 300
# Rounding to bf16 in another order moves a result from that of fp32 about as far as diffusers' own
# rounding does; a mistake moves it much further.
FARTHER = 1.5
# What fp32 is allowed, where diffusers itself is compared with itself.
LEAST = 1e-5
TINY = {
    "num_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 32,
    "caption_channels": 24,
    "sample_size": 4,
    "qk_norm": "rms_norm_across_heads",
}


@dataclass
class Variant:
    """One way to denoise, and what was measured of it; times in seconds, memory in bytes.

    `first` is the time of the first denoise, compiling and capturing included; `peak` is what a
    denoise takes beyond the weights, which all share, with what the variant keeps between two;
    `error` is the relative RMS of the last latents to those of the same weights in fp32.
    """

    name: str
    runs: list[float] = field(default_factory=list)
    first: float = 0.0
    kept: int = 0
    peak: int = 0
    error: float = float("nan")
    refused: str = ""

    @property
    def seconds(self) -> float | None:
        """Median, or nothing where the numbers were wrong."""
        return None if self.refused or not self.runs else statistics.median(self.runs)

    def record(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self) | {"seconds": self.seconds}


class Denoise:
    """Everything that all variants share: weights, noise, text, steps.

    Args:
        device: where.
        tiny: a model of no size, to try the benchmark itself.
        compiler: name of the backend of `torch.compile`.
    """

    def __init__(self, device: torch.device, *, tiny: bool, compiler: str) -> None:
        from sana_like.presets import TRANSFORMER_PRESETS

        self.device, self.compiler = device, compiler
        self.config = TINY if tiny else TRANSFORMER_PRESETS[PRESET].config()
        self.steps = 2 if tiny else 20
        self.dtype = torch.float32 if tiny else torch.bfloat16
        self.prompt, self.slots = (3, 6) if tiny else (PROMPT, SLOTS)
        self.theirs = self._diffusers()
        self.ours = self._ours()
        generator = torch.Generator().manual_seed(0)
        side = self.config["sample_size"]
        channels = self.theirs.config.in_channels
        self.noise = torch.randn(1, channels, side, side, generator=generator).to(device)
        text = torch.randn(2, self.slots, self.theirs.config.caption_channels, generator=generator)
        self.text = text.to(device, self.dtype)
        self.mask = torch.zeros(2, self.slots, dtype=torch.int64, device=device)
        self.mask[0, :NEGATIVE], self.mask[1, : self.prompt] = 1, 1
        self.sigmas = torch.linspace(1, 0, self.steps + 1).tolist()

    def _diffusers(self) -> Any:
        from diffusers import SanaTransformer2DModel

        torch.manual_seed(0)
        with self.device:
            model = SanaTransformer2DModel(**self.config)
        return model.to(self.dtype).eval().requires_grad_(False)

    def _ours(self) -> Any:
        """Our model on the very tensors of diffusers'."""
        from sana_like import SanaTransformer2DModel

        with torch.device("meta"):
            model = SanaTransformer2DModel(**self.config)
        model.load_state_dict(self.theirs.state_dict(), assign=True)
        return model.eval().requires_grad_(False)

    def loop(self, predict: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Flow steps with guidance; `predict` is given latents `[2, ...]` and a timestep `[2]`."""
        latents = self.noise
        for now, after in zip(self.sigmas, self.sigmas[1:], strict=False):
            timestep = torch.full((2,), 1000 * now, device=self.device)
            both = predict(torch.cat([latents, latents]).to(self.dtype), timestep).float()
            negative, positive = both.chunk(2)
            velocity = negative + GUIDANCE * (positive - negative)
            latents = latents + (after - now) * velocity
        return latents

    def diffusers(self, model: nn.Module) -> Tensor:
        """Denoise as diffusers' pipeline does: text and its mask at every step."""
        return self.loop(
            lambda latents, timestep: model(
                latents,
                encoder_hidden_states=self.text,
                encoder_attention_mask=self.mask,
                timestep=timestep,
                return_dict=False,
            )[0]
        )

    def sana_like(self, model: nn.Module, evaluate: Callable[..., Any] | None = None) -> Tensor:
        """Denoise as our pipeline does: the text is projected once."""
        context = self.ours.prepare_text(self.text, self.mask)
        call = evaluate or (lambda *args, **kwargs: model(*args, **kwargs)[0])
        return self.loop(
            lambda latents, timestep: call(latents, context, timestep=timestep, return_dict=False)
        )

    def exact(self) -> Tensor:
        """The result of diffusers in fp32."""
        wide = self._diffusers().float()
        wide.load_state_dict(self.theirs.state_dict())
        text, dtype = self.text, self.dtype
        self.text, self.dtype = text.float(), torch.float32
        try:
            return self.diffusers(wide)
        finally:
            self.text, self.dtype = text, dtype

    def variants(self) -> Iterator[tuple[str, Callable[[], Tensor]]]:
        """Names and denoises, in the order A, B, C, ..."""
        yield "diffusers", lambda: self.diffusers(self.theirs)
        compiled = self._compiled(self.theirs)
        yield "diffusers compiled", lambda: self.diffusers(compiled)
        yield "sana_like", lambda: self.sana_like(self.ours)
        own = self._compiled(self.ours)
        yield "sana_like compiled", lambda: self.sana_like(own)
        if self.device.type == "cuda":
            from sana_like_pipelines.step_graphs import StepGraphs

            graphs = StepGraphs()

            def replay(*args: Any, **kwargs: Any) -> Tensor:
                return graphs(self.ours, *args, **kwargs)

            yield "sana_like graphs", lambda: self.sana_like(self.ours, replay)

    def _compiled(self, model: nn.Module) -> nn.Module:
        """A second model on the same weights, its repeated blocks compiled."""
        with torch.device("meta"):
            other = type(model)(**self.config)
        other.load_state_dict(model.state_dict(), assign=True)
        other.eval().requires_grad_(False)
        for block in other.transformer_blocks:
            block.compile(backend=self.compiler)
        return other


@torch.no_grad()
def compare(
    device: torch.device,
    *,
    tiny: bool = False,
    compiler: str = "inductor",
    enough: Callable[[], bool] = lambda: False,
) -> list[Variant]:
    """Measure every variant, there and back.

    Args:
        device: where.
        tiny: a model of no size.
        compiler: backend of `torch.compile`.
        enough: whether to stop; asked before each variant is begun.
    """
    denoise = Denoise(device, tiny=tiny, compiler=compiler)
    exact = denoise.exact()
    limit = LEAST
    found: list[tuple[Variant, Callable[[], Tensor]]] = []
    for name, run in denoise.variants():
        variant = Variant(name)
        found.append((variant, run))
        if enough():
            variant.refused = "no time left"
            continue
        with _failures(variant):
            _begin(variant, run, device, exact)
            # The first is diffusers, whose own distance is the measure.
            limit = max(limit, FARTHER * variant.error) if len(found) == 1 else limit
            if not variant.error <= limit:  # also where it is NaN
                variant.refused = (
                    f"wrong numbers: {variant.error:.1e}, at most {limit:.1e} is right"
                )
    for variant, run in [*found, *reversed(found)]:
        if not variant.refused:
            with _failures(variant):
                _measure(variant, run, device)
    return [variant for variant, _ in found]


def _begin(
    variant: Variant, run: Callable[[], Tensor], device: torch.device, exact: Tensor
) -> None:
    """The first denoise: its time, what it keeps, and whether it is right."""
    from sana_like_kernels.testing import relative_rms

    before = _allocated(device)
    variant.first, latents = _timed(run, device)
    variant.error = relative_rms(exact, latents)
    del latents
    variant.kept = _allocated(device) - before


@contextmanager
def _failures(variant: Variant) -> Iterator[None]:
    """A variant that fails is reported; the others go on."""
    try:
        yield
    except Exception as error:  # the compiler's and the device's have no common class
        variant.refused = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"


def _measure(variant: Variant, run: Callable[[], Tensor], device: torch.device) -> None:
    before = _allocated(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    variant.runs.append(_timed(run, device)[0])
    if device.type == "cuda":
        transient = torch.cuda.max_memory_allocated(device) - before
        variant.peak = max(variant.peak, variant.kept + transient)


def _allocated(device: torch.device) -> int:
    """Bytes in use, after freeing what can be freed."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device)


def _timed(run: Callable[[], Tensor], device: torch.device) -> tuple[float, Tensor]:
    _wait(device)
    start = time.perf_counter()
    result = run()
    _wait(device)
    return time.perf_counter() - start, result


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
