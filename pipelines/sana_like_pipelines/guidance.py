"""Guidance: how several predictions for one latent become one.

Legend: `B` pictures or clips, `Z` latent channels, `y`, `x` latent grid (clips have latent frames
before them), `c`, `u`, `p` the predictions with the prompt, with the negative prompt, and with the
prompt and perturbed attention.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sana_like.transformers.text_context import TextContext

Branch = Literal["negative", "prompt", "perturbed"]
Network = Callable[[Tensor, tuple[Branch, ...]], Tensor]
"""Latents `[k * B, Z, y, x]`, one group of B rows for each branch, to predictions of that shape."""


@dataclass(frozen=True)
class Guidance:
    """Settings of one call.

    `v = u + scale * (c - u) + pag_scale * (c - p)`; a term whose weight does nothing is neither
    added nor computed. Sources: classifier-free guidance, arXiv 2207.12598; guidance in a limited
    interval, 2404.07724; perturbed-attention guidance, 2403.17377; spatio-temporal skip guidance,
    which skips whole blocks in place of their attention, 2411.18664; adaptive projected guidance,
    2410.02416.

    Raises:
        ValueError: a value is out of range.
    """

    scale: float = 1.0
    """Weight of the prompt against the negative prompt; up to 1 the latter is not used."""
    interval: tuple[float, float] = (0.0, 1.0)
    """Part of the steps, as fractions of their number, in which `scale` acts."""
    pag_scale: float = 0.0
    """Weight of the perturbed branch; 0 leaves it out."""
    pag_adaptive_scale: float = 0.0
    """How much `pag_scale` falls per unit of time passed, of 1000; never below 0."""
    pag_layers: tuple[int, ...] = ()
    """Blocks whose self-attention the perturbed branch skips."""
    pag_interval: tuple[float, float] = (0.0, 1.0)
    """Part of the steps in which `pag_scale` acts."""
    skips_blocks: bool = False
    """Whether the perturbed branch skips the whole blocks."""
    projection: Projection | None = None
    """What is done to `c - u` before it is added; `None` for nothing."""
    batched: bool = True
    """One pass with all branches in the batch (faster), or a pass for each (less memory)."""

    def __post_init__(self) -> None:
        for name in ("scale", "pag_scale", "pag_adaptive_scale"):
            value = getattr(self, name)
            if not (_is_number(value) and math.isfinite(value)):
                raise ValueError(f"guidance: {name}={value!r} must be a finite number")
        if self.pag_scale < 0 or self.pag_adaptive_scale < 0:
            raise ValueError("pag_scale and pag_adaptive_scale must be 0 or more")
        _check_interval("guidance_interval", self.interval)
        _check_interval("the interval of the perturbed branch", self.pag_interval)

    @property
    def uses_negative(self) -> bool:
        """Whether any step needs the negative prompt."""
        return self.scale > 1

    @property
    def branches(self) -> int:
        """Predictions that a picture needs in a step, at most."""
        return 1 + self.uses_negative + (self.pag_scale > 0)

    def pag_weight(self, time: float) -> float:
        """Weight of the perturbed branch at `time`, which runs from 1000 to 0."""
        return max(self.pag_scale - self.pag_adaptive_scale * (1000 - time), 0.0)

    def predict(
        self, network: Network, latents: Tensor, *, step: int, steps: int, time: float
    ) -> Tensor:
        """One guided prediction.

        Args:
            network: what runs the model for given branches.
            latents: `[B, Z, y, x]`, or `[B, Z, t, y, x]`.
            step, steps: number of this step, from 0, and of all steps.
            time: noise level from 1000 to 0, for `pag_adaptive_scale` and `projection`.

        Returns:
            The shape of the latents, fp32.
        """
        start, end = self.interval
        pag_start, pag_end = self.pag_interval
        pag = self.pag_weight(time) if pag_start <= step / steps < pag_end else 0.0
        branches: tuple[Branch, ...] = ("prompt",)
        if self.uses_negative and start <= step / steps < end:
            branches = ("negative", *branches)
        if pag > 0:
            branches = (*branches, "perturbed")
        if self.batched:
            outputs = network(torch.cat([latents] * len(branches)), branches).float()
            parts = dict(zip(branches, outputs.chunk(len(branches)), strict=True))
        else:
            parts = {branch: network(latents, (branch,)).float() for branch in branches}
        prompt = parts["prompt"]
        result = prompt
        if "negative" in parts:
            if self.projection is None:
                result = parts["negative"] + self.scale * (prompt - parts["negative"])
            else:
                level = time / 1000
                result = self.projection.guided(
                    latents.float(), prompt, parts["negative"], self.scale, level, first=step == 0
                )
        if "perturbed" in parts:
            result = result + pag * (prompt - parts["perturbed"])
        return result


@dataclass
class Projection:
    """Adaptive projected guidance (arXiv 2410.02416): high scales without oversaturation.

    It works on clean latents, `x0 = x - level * v`. Of the step `d = x0_c - x0_u` a part of the
    previous one is added (`momentum`, negative to push away from it), its length is limited
    (`norm_threshold`), and what of it points along `x0_c` counts by `eta` alone:
    `x0 = x0_c + (scale - 1) * (orthogonal + eta * parallel)`. Belongs to one run at a time.

    Raises:
        ValueError: a value is out of range.
    """

    eta: float = 0.0
    norm_threshold: float = 0.0
    """Longest step, as the norm over a whole picture or clip; 0 is without limit."""
    momentum: float = 0.0
    before: Tensor | None = None
    """The step of the evaluation before."""

    def __post_init__(self) -> None:
        for name in ("eta", "norm_threshold", "momentum"):
            value = getattr(self, name)
            if not (_is_number(value) and math.isfinite(value)):
                raise ValueError(f"guidance: apg_{name}={value!r} must be a finite number")
        if self.norm_threshold < 0 or not -1 < self.momentum < 1:
            raise ValueError("apg_norm_threshold must be 0 or more, apg_momentum within -1 and 1")

    def guided(
        self,
        latents: Tensor,
        prompt: Tensor,
        negative: Tensor,
        scale: float,
        level: float,
        *,
        first: bool,
    ) -> Tensor:
        """The guided velocity of latents at a noise level in (0, 1].

        Args:
            latents: what the velocities were predicted for.
            prompt, negative: velocities c and u.
            scale: of the guidance.
            level: of the noise.
            first: whether a run begins.
        """
        step = level * (negative - prompt)  # x0_c - x0_u
        if self.momentum:
            if not first and self.before is not None:
                step = step + self.momentum * self.before
            self.before = step
        if self.norm_threshold:
            step = step * (self.norm_threshold / _norm(step)).clamp(max=1)
        clean = latents - level * prompt
        direction = clean / _norm(clean)
        parallel = (step * direction).flatten(1).sum(dim=1).view(-1, *[1] * (step.ndim - 1))
        parallel = parallel * direction
        moved = (scale - 1) * (step - parallel + self.eta * parallel)
        return prompt - moved / level


def _norm(tensor: Tensor) -> Tensor:
    """Norm of each row, never 0, with the axes of the tensor."""
    norms = tensor.flatten(1).norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    return norms.view(-1, *[1] * (tensor.ndim - 1))


def _check_interval(name: str, interval: object) -> None:
    pair = isinstance(interval, Sequence) and len(interval) == 2 and all(map(_is_number, interval))
    if not pair or not 0 <= interval[0] <= interval[1] <= 1:  # type: ignore[index]
        raise ValueError(
            f"{name}={interval!r} must be (start, end) with 0 <= start <= end <= 1, as fractions "
            "of the steps"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class BranchTexts:
    """The text of one model for any set of branches, concatenated once.

    Args:
        prompt: B rows.
        negative: B rows, or `None` where no branch needs them.
    """

    def __init__(self, prompt: TextContext, negative: TextContext | None) -> None:
        self.by_branch = {"prompt": prompt, "perturbed": prompt, "negative": negative}
        self._joined: dict[tuple[Branch, ...], TextContext] = {}

    def __getitem__(self, branches: tuple[Branch, ...]) -> TextContext:
        """Rows of all branches, one group after the other."""
        if branches not in self._joined:
            parts = [self._part(branch) for branch in branches]
            self._joined[branches] = parts[0] if len(parts) == 1 else TextContext.cat(parts)
        return self._joined[branches]

    def _part(self, branch: Branch) -> TextContext:
        part = self.by_branch[branch]
        if part is None:
            raise ValueError(
                "guidance was raised above 1 during a call that began without: its negative prompt "
                "was not read; begin with guidance_scale above 1"
            )
        return part


def perturbed_rows(
    branches: Sequence[Branch], pictures: int, device: torch.device
) -> Tensor | None:
    """Bool `[len(branches) * pictures]`, true for rows of the perturbed branch; `None` for none."""
    if "perturbed" not in branches:
        return None
    marks = torch.tensor([branch == "perturbed" for branch in branches], device=device)
    return marks.repeat_interleave(pictures)


def choose_layers(
    wish: int | str | Iterable[int | str] | None,
    num_layers: int,
    name: str = "pag_applied_layers",
) -> tuple[int, ...]:
    """Blocks that a `pag_applied_layers` argument means.

    Args:
        wish: block numbers; names such as `"transformer_blocks.8"` or `"blocks.8"`; regular
            expressions over such names, such as `r"blocks\\.(8|14)"`; a list of them; or `None`
            for the middle block.
        num_layers: blocks of the model.
        name: of the argument, for messages.

    Raises:
        ValueError: one of them means no block.
    """
    if wish is None:
        return (num_layers // 2,)
    chosen: set[int] = set()
    for item in [wish] if isinstance(wish, (int, str)) else wish:
        # The end is anchored and a digit may not go before: "1" and "blocks.1" do not mean 10.
        try:
            pattern = re.compile(rf"(?<!\d)(?:{item})$")
        except re.error as error:
            raise ValueError(f"{name}: {item!r} is no expression: {error}") from error
        found = {i for i in range(num_layers) if pattern.search(f"transformer_blocks.{i}")}
        if not found:
            raise ValueError(
                f"{name}: {item!r} means none of this model's blocks 0 to "
                f"{num_layers - 1}; give a number, 'transformer_blocks.N', or an expression"
            )
        chosen |= found
    return tuple(sorted(chosen))
