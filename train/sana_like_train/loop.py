"""The one training loop.

Every random draw is a function of the seed and of the position in the run, so a resumed run
continues bit for bit without saved generator states, whatever was sampled or measured between.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from sana_like_train import checkpoint
from sana_like_train.config import Recipe
from sana_like_train.ema import ExponentialMovingAverage
from sana_like_train.optim import build_optimizers, learning_rate_factor, set_learning_rate
from sana_like_train.reading import dump
from sana_like_train.reporting import Reporter
from sana_like_train.stopping import StopSignals
from sana_like_train.tasks.base import Batch, Position, TrainingTask, derived_seed

logger = logging.getLogger(__name__)

Status = Literal["finished", "interrupted", "time_up"]


class NonFiniteLossError(RuntimeError):
    """The loss or its gradient is NaN or infinite; the message names the samples."""


@dataclass
class Progress:
    """What a checkpoint says of the run besides tensors."""

    step: int = 0
    micro: int = 0
    samples: int = 0
    seconds: float = 0.0
    best: float | None = None
    measures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """How a session ended."""

    status: Status
    progress: Progress
    folder: Path


class Trainer:
    """Trains a task as a recipe says, in a run folder.

    Args:
        recipe: the resolved recipe.
        task: what is trained; its modules are on the CPU.
        folder: of the run; `checkpoints/`, `samples/`, `tensorboard/` and `log.jsonl` go there.
    """

    def __init__(self, recipe: Recipe, task: TrainingTask, folder: Path) -> None:
        self.recipe = recipe
        self.config = recipe.train
        self.task = task
        self.folder = folder
        self.accelerator = Accelerator(cpu=self.config.device == "cpu")
        self.device = self.accelerator.device
        self.progress = Progress()
        self.frozen_hash = checkpoint.frozen_hash(task.objective)
        optimizers = build_optimizers(task.objective, self.config.optimizer, self.config.lr)
        self.ema: ExponentialMovingAverage | None = None
        prepared = self.accelerator.prepare(task.objective, *optimizers)
        self.objective: nn.Module = prepared[0]
        self.optimizers: list[Optimizer] = list(prepared[1:])
        self.critic: nn.Module | None = None
        self.critic_optimizers: list[Optimizer] = []
        if task.critic is not None:
            adversarial = self.config.optimizer.model_copy(update={"kind": "adamw"})
            optimizers = build_optimizers(task.critic, adversarial, task.critic_lr)
            prepared = self.accelerator.prepare(task.critic, *optimizers)
            self.critic, self.critic_optimizers = prepared[0], list(prepared[1:])
        if self.config.ema:
            ema = self.config.ema
            self.ema = ExponentialMovingAverage(task.exported, ema.decay, ema.warmup)

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.folder / "checkpoints"

    def fit(self) -> Result:
        """Trains until a limit of the recipe or a signal, and leaves a checkpoint.

        Raises:
            NonFiniteLossError: naming the samples; the last checkpoint is untouched.
        """
        config, progress = self.config, self.progress
        status: Status = "finished"
        world = self.accelerator.num_processes
        last_save = time.monotonic()
        started = time.monotonic() - progress.seconds
        with StopSignals() as signals, Reporter(self.folder, config, self._is_main) as reporter:
            while progress.step < config.max_steps:
                if config.max_samples and progress.samples >= config.max_samples:
                    break
                logs = self._step()
                progress.seconds = time.monotonic() - started
                reporter.step(progress.step, progress.samples, progress.seconds, logs)
                improved = self._measure(reporter)
                hours_up = bool(config.max_hours and progress.seconds > config.max_hours * 3600)
                minutes = (time.monotonic() - last_save) / 60
                due = bool(config.checkpoint_minutes and minutes > config.checkpoint_minutes)
                stop, hours_up, due = self._agree(signals.received, hours_up, due)
                due = due or improved or _every(progress.step, config.checkpoint_steps)
                if due:
                    self.save()
                    if improved and self._is_main:
                        checkpoint.point(self.checkpoints, "best", self._name())
                    last_save = time.monotonic()
                if stop or hours_up:
                    status = "interrupted" if stop else "time_up"
                    break
            if checkpoint.find(self.checkpoints) != self.checkpoints / self._name():
                self.save()
        if world > 1:
            self.accelerator.wait_for_everyone()
        return Result(status, progress, self.folder)

    def _step(self) -> dict[str, Tensor]:
        progress, config = self.progress, self.config
        factor = learning_rate_factor(config.schedule, progress.step, config.max_steps)
        set_learning_rate(self.optimizers, factor)
        set_learning_rate(self.critic_optimizers, factor)
        keys: list[str] = []
        logs: dict[str, Tensor] = {}
        trains = progress.step % self.task.objective_every == 0
        for micro in range(config.gradient_accumulation):
            position = Position(
                progress.step,
                progress.micro,
                progress.samples,
                self.accelerator.process_index,
                self.accelerator.num_processes,
            )
            self._seed_everything()
            batch = self.task.make_batch(position)
            keys += batch.keys
            last = micro == config.gradient_accumulation - 1
            logs = self._micro_step(batch, last, trains)
            progress.micro += 1
            progress.samples += len(batch.keys) * position.world
        if trains:
            logs.update(self._update_objective(keys))
        if self.critic is not None:
            self._clipped(self.critic)
            for optimizer in self.critic_optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        logs["lr"] = torch.tensor(config.lr * factor)
        progress.step += 1
        return logs

    def _update_objective(self, keys: list[str]) -> dict[str, Tensor]:
        """One step of the objective's optimisers and of the average; gives values to log."""
        logs = {}
        norm = self._clipped(self.objective)
        if norm is not None:
            logs["grad_norm"] = norm
            if not torch.isfinite(norm):
                raise NonFiniteLossError(
                    f"gradient norm is {float(norm)} at step {self.progress.step}; samples: "
                    f"{', '.join(keys)}; lower train.lr or look at these samples"
                )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.ema:
            self.ema.update(self.task.exported)
        return logs

    def _micro_step(self, batch: Batch, last: bool, trains: bool) -> dict[str, Tensor]:
        tensors = {key: value.to(self.device) for key, value in batch.tensors.items()}
        parts = self.config.gradient_accumulation
        with self._synchronised(self.objective, last):
            if self.task.critic is not None:
                self.task.critic.requires_grad_(False)
            with self._autocast(), torch.set_grad_enabled(trains):
                out = self.objective(tensors)
            _check_finite(out, batch.keys, self.progress.step)
            if trains:
                self.accelerator.backward(out["loss"] / parts)
        logs = {"loss": out["loss"].detach(), **out["logs"]} if trains else {}
        if self.critic is not None and self.task.critic is not None:
            self.task.critic.requires_grad_(True)
            with self._synchronised(self.critic, last):
                with self._autocast():
                    judged = self.critic(out["carry"])
                _check_finite(judged, batch.keys, self.progress.step)
                self.accelerator.backward(judged["loss"] / parts)
            logs.update(judged["logs"])
        return logs

    def _synchronised(self, module: nn.Module, last: bool) -> Any:
        """Gradients travel between processes only in the last micro step."""
        return torch.enable_grad() if last else self.accelerator.no_sync(module)

    def _autocast(self) -> torch.autocast:
        """Products in bf16 where the recipe says so; weights and losses stay fp32."""
        half = self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    def _clipped(self, module: nn.Module) -> Tensor | None:
        if self.config.clip_norm is None:
            return None
        return self.accelerator.clip_grad_norm_(module.parameters(), self.config.clip_norm)

    def _seed_everything(self) -> None:
        counters = (self.progress.micro, self.accelerator.process_index)
        seed = derived_seed(self.config.seed, "step", *counters)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def _agree(self, *flags: bool) -> tuple[bool, ...]:
        """Flags raised on any process, so that all stop and save together."""
        if self.accelerator.num_processes == 1:
            return flags
        raised = torch.tensor([float(flag) for flag in flags], device=self.device)
        total = self.accelerator.reduce(raised, reduction="sum")
        return tuple(bool(value > 0) for value in total)

    @property
    def _is_main(self) -> bool:
        return self.accelerator.is_main_process

    def _name(self) -> str:
        return f"step-{self.progress.step:08d}"

    def _measure(self, reporter: Reporter) -> bool:
        """Samples and held-out measures where they are due; true for a new best."""
        step = self.progress.step
        final = step == self.config.max_steps
        evaluate = _every(step, self.config.evaluate_steps) or (
            final and self.config.evaluate_steps is not None
        )
        sample = _every(step, self.config.sample_steps) or (
            final and self.config.sample_steps is not None
        )
        if not (evaluate or sample):
            return False
        improved = False
        if self._is_main:
            improved = self.with_averages(lambda: self._measured(reporter, evaluate, sample))
        return self._agree(improved)[0]

    def _measured(self, reporter: Reporter, evaluate: bool, sample: bool) -> bool:
        step = self.progress.step
        if sample:
            reporter.picture(step, self.task.sample_sheet(self.device))
        if not evaluate:
            return False
        measures = self.task.evaluate(self.device)
        self.progress.measures = measures
        reporter.measures(step, measures)
        value, best = measures[self.task.metric], self.progress.best
        better = best is None or (value > best if self.task.higher_is_better else value < best)
        if better:
            self.progress.best = value
        return better

    def with_averages(self, function: Callable[[], Any]) -> Any:
        """Calls with the exported module in eval mode, holding the averaged weights, no grad."""
        module = self.task.exported
        training = module.training
        module.eval()
        try:
            with torch.no_grad(), self._autocast():
                if self.ema is None:
                    return function()
                with self.ema.applied_to(module):
                    return function()
        finally:
            module.train(training)

    def save(self) -> None:
        """Writes a checkpoint of this moment and removes old ones."""
        if not self._is_main:
            return
        tensors = {"model": checkpoint.trained_state(self.task.objective)}
        state: dict[str, Any] = {
            "progress": vars(self.progress).copy(),
            "frozen": self.frozen_hash,
            "optimizers": [],
        }
        if self.ema:
            tensors["ema"] = self.ema.state_dict()
            state["ema_updates"] = self.ema.updates
        if self.task.critic is not None:
            tensors["critic"] = checkpoint.trained_state(self.task.critic)
        for index, optimizer in enumerate(self.optimizers + self.critic_optimizers):
            tensors[f"optimizer{index}"], plain = checkpoint.flatten_optimizer(optimizer)
            state["optimizers"].append(plain)
        contents = checkpoint.Checkpoint(tensors, state)
        recipe = {"recipe.yaml": dump(self.recipe)}
        checkpoint.write(self.checkpoints, self._name(), contents, recipe)
        checkpoint.prune(self.checkpoints, self.config.keep_last)

    def resume(self, path: Path) -> None:
        """Continues from a checkpoint of the same model and optimiser.

        Raises:
            CheckpointError: damaged, or of another model, optimiser or EMA setting.
        """
        contents = checkpoint.read(path)
        tensors, state = contents.tensors, contents.state
        if state["frozen"] != self.frozen_hash:
            raise checkpoint.CheckpointError(
                f"the weights that this run does not train are not those it began with (see "
                f"train.init_from in {path / 'recipe.yaml'}); give it the same ones"
            )
        checkpoint.load_into(self.task.objective, tensors["model"], path)
        if (self.ema is not None) != ("ema" in tensors):
            raise checkpoint.CheckpointError(
                f"{path} was written {'with' if 'ema' in tensors else 'without'} train.ema; "
                "resume with the same setting"
            )
        if self.ema:
            self.ema.load_state_dict(tensors["ema"], state["ema_updates"])
        optimizers = self.optimizers + self.critic_optimizers
        if len(optimizers) != len(state["optimizers"]):
            raise checkpoint.CheckpointError(
                f"{path} holds {len(state['optimizers'])} optimisers, the recipe makes "
                f"{len(optimizers)}; resume with the same optimizer and adversary settings"
            )
        if self.task.critic is not None:
            checkpoint.load_into(self.task.critic, tensors["critic"], path)
        for index, optimizer in enumerate(optimizers):
            inner = getattr(optimizer, "optimizer", optimizer)
            plain = state["optimizers"][index]
            checkpoint.restore_optimizer(inner, tensors[f"optimizer{index}"], plain)
        self.progress = Progress(**state["progress"])
        logger.info("resumed %s at step %d", path, self.progress.step)


def _every(step: int, interval: int | None) -> bool:
    return interval is not None and step % interval == 0


def _check_finite(out: dict[str, Any], keys: list[str], step: int) -> None:
    if torch.isfinite(out["loss"]):
        return
    bad = (~torch.isfinite(out["per_sample"])).flatten().nonzero().flatten().tolist()
    names = [keys[index] for index in bad] or keys
    raise NonFiniteLossError(
        f"loss is {float(out['loss'].detach())} at step {step}; samples: {', '.join(names)}; "
        "look at these samples, or lower train.lr and resume from the last checkpoint"
    )
