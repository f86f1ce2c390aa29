"""Optimisers and learning-rate schedules."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from sana_like_train.config import OptimizerConfig, Schedule

# Quintic Newton-Schulz coefficients of Muon (Jordan et al. 2024): steep at zero, so five
# iterations bring every singular value into about [0.7, 1.2].
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)

# A matrix whose shorter side is longer than this is orthogonalised in blocks of rows: the cost
# grows with the square of the shorter side, and blocks learn as fast.
_LARGEST_SIDE = 512
_ROWS_PER_BLOCK = 256


def learning_rate_factor(schedule: Schedule, step: int, max_steps: int) -> float:
    """Factor on the peak learning rate for the optimiser step with index `step` (from 0)."""
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    if schedule.kind == "constant":
        return 1.0
    start = schedule.warmup_steps
    if schedule.kind == "wsd":
        start = max(start, max_steps - schedule.decay_steps)
    done = min(max((step - start) / max(max_steps - start, 1), 0.0), 1.0)
    shape = 1 - math.sqrt(done) if schedule.kind == "wsd" else 0.5 * (1 + math.cos(math.pi * done))
    return schedule.floor + (1 - schedule.floor) * shape


@torch.no_grad()
def orthogonalize(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Replaces the singular values of `[K, R, S]` matrices by values near 1 (Newton-Schulz, bf16).

    Returns a tensor of the same shape and dtype.
    """
    a, b, c = _NEWTON_SCHULZ
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices.bfloat16() if wide else matrices.bfloat16().transpose(1, 2)
    x = x / matrices.float().flatten(1).norm(dim=1).clamp_min(1e-7).bfloat16()[:, None, None]
    for _ in range(iterations):
        gram = x @ x.transpose(1, 2)  # [K, R, R]
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.transpose(1, 2)).to(matrices.dtype)


def _blocks(shape: torch.Size) -> int:
    """Into how many blocks of rows the update of a weight of this shape is cut."""
    rows, columns = shape[0], shape[1:].numel()
    if min(rows, columns) <= _LARGEST_SIDE or rows % _ROWS_PER_BLOCK:
        return 1
    return rows // _ROWS_PER_BLOCK


class Muon(Optimizer):
    """Momentum whose matrix updates are orthogonalised (Jordan et al. 2024).

    A convolution kernel `[O, I, ...]` counts as the matrix `[O, I * ...]` that it applies to each
    window. Updates are scaled by `0.2 * sqrt(max(rows, columns))`, which gives them AdamW's usual
    RMS, so that one learning rate serves both (Liu et al. 2025, "Muon is scalable").

    Args:
        params: matrices and convolution kernels, or groups of them.
        lr: learning rate.
        momentum: Nesterov momentum.
        weight_decay: decoupled, as in AdamW.
        fixed_norm: move each weight on the sphere of its own Frobenius norm, by the fraction `lr`
            of it per step. Where a norm follows, the loss does not depend on that scale, and
            nothing else keeps it from growing until the residual branches beside it count for
            nothing. A weight that starts at zero stays there.

    Raises:
        ValueError: a parameter of fewer than two dimensions.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        fixed_norm: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "fixed_norm": fixed_norm,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim < 2:
                    raise ValueError(
                        f"Muon takes matrices and kernels, got shape {tuple(parameter.shape)}"
                    )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update; weights of one shape are orthogonalised together; no closure."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            buffers.append(state["momentum_buffer"])
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(gradients, buffers, group["momentum"])
        shape = parameters[0].shape
        count = len(parameters) * _blocks(shape)
        stacked = torch.stack(nesterov).reshape(count, -1, shape[1:].numel())  # [K, R, S]
        update = orthogonalize(stacked).reshape(-1, *shape)
        before = torch._foreach_norm(parameters)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        if not group["fixed_norm"]:
            scale = 0.2 * math.sqrt(max(stacked.shape[1:]))
            torch._foreach_add_(parameters, list(update), alpha=-group["lr"] * scale)
            return
        for parameter, norm, direction in zip(parameters, before, update, strict=True):
            parameter.add_(direction * (norm / direction.norm()), alpha=-group["lr"])
            parameter.mul_(norm / parameter.norm().clamp_min(1e-12))


def _is_muons(name: str, parameter: Tensor, excluded: Iterable[str]) -> bool:
    """Whether a parameter is a matrix or a kernel that mixes channels, and not excluded."""
    if parameter.ndim not in (2, 4, 5) or parameter.shape[1] == 1:
        return False
    return not any(f".{part}." in f".{name}." for part in excluded)


def build_optimizers(module: nn.Module, config: OptimizerConfig, lr: float) -> list[Optimizer]:
    """AdamW, or Muon and AdamW, over the parameters of a module that require a gradient.

    Each group keeps its peak learning rate under `peak_lr`.

    Raises:
        ValueError: nothing to train.
    """
    decayed, plain, muon = [], [], []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if config.kind == "muon" and _is_muons(name, parameter, config.muon_exclude):
            muon.append(parameter)
        elif parameter.ndim >= 2 and "table" not in name:
            decayed.append(parameter)
        else:
            plain.append(parameter)
    if not (decayed or plain or muon):
        raise ValueError("no parameter requires a gradient; check task.trainable")
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay, "peak_lr": lr},
        {"params": plain, "weight_decay": 0.0, "peak_lr": lr},
    ]
    optimizers: list[Optimizer] = [
        AdamW(
            [group for group in groups if group["params"]],
            lr=lr,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )
    ]
    if muon:
        peak = lr * config.muon_lr_scale
        group = {"params": muon, "weight_decay": config.weight_decay, "peak_lr": peak}
        optimizers.append(Muon([group], peak, config.momentum, fixed_norm=config.muon_fixed_norm))
    return optimizers


def set_learning_rate(optimizers: list[Optimizer], factor: float) -> None:
    """Sets every group to `factor` times its peak learning rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
