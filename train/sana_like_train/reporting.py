"""What a run writes while it goes: progress, TensorBoard, `log.jsonl` and sample sheets."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from sana_like_train.config import TrainConfig

logger = logging.getLogger(__name__)


def to_image(sheet: Tensor) -> Image.Image:
    """`[3, Y, X]` in [-1, 1] to a picture."""
    pixels = ((sheet.float().clamp(-1, 1) + 1) * 127.5).round().byte()
    return Image.fromarray(np.ascontiguousarray(pixels.movedim(0, -1).cpu().numpy()))


def sheet(pictures: Tensor, columns: int) -> Tensor:
    """Pictures `[N, 3, Y, X]` in rows, white where one is missing, as one `[3, Y', X']`."""
    missing = -len(pictures) % columns
    padded = torch.cat([pictures, torch.ones(missing, *pictures.shape[1:])])
    rows = [torch.cat(list(row), dim=2) for row in padded.split(columns)]
    return torch.cat(rows, dim=1)


class Reporter:
    """Writes into the run folder; silent on processes other than the main one.

    Args:
        folder: of the run.
        config: says how often.
        active: whether this process reports.
    """

    def __init__(self, folder: Path, config: TrainConfig, active: bool) -> None:
        self.folder = folder
        self.config = config
        self.active = active
        self._last_line = time.monotonic()
        self._window: list[tuple[float, int]] = []

    def __enter__(self) -> Reporter:
        if self.active:
            from torch.utils.tensorboard import SummaryWriter

            self.folder.mkdir(parents=True, exist_ok=True)
            self._board = SummaryWriter(str(self.folder / "tensorboard"))
            self._log = (self.folder / "log.jsonl").open("a", encoding="utf-8", buffering=1)
            self._bar: Progress | None = None
            if sys.stderr.isatty():
                from rich.console import Console

                columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
                self._bar = Progress(*columns, console=Console(stderr=True))
                self._bar_task = self._bar.add_task("", total=self.config.max_steps)
                self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.active:
            if self._bar:
                self._bar.stop()
            self._board.close()
            self._log.close()

    def step(self, step: int, samples: int, seconds: float, logs: dict[str, Tensor]) -> None:
        """Reports one optimiser step."""
        if not self.active:
            return
        self._window = [*self._window[-49:], (seconds, samples)]
        line_due = time.monotonic() - self._last_line > self.config.log_seconds
        if step % self.config.log_steps and not line_due:
            return
        values = {name: float(value) for name, value in logs.items()}
        values["samples_per_second"] = self._speed()
        self._record(step, {"samples": samples, "seconds": round(seconds, 1), **values}, "train")
        text = f"step {step}/{self.config.max_steps}  " + "  ".join(
            f"{name} {value:.4g}" for name, value in values.items()
        )
        if self._bar:
            self._bar.update(self._bar_task, completed=step, description=text)
        elif line_due:
            logger.info("%s  %.2f h", text, seconds / 3600)
            self._last_line = time.monotonic()

    def measures(self, step: int, values: dict[str, float]) -> None:
        """Reports held-out measures."""
        self._record(step, values, "held_out")
        text = "  ".join(f"{name} {value:.5g}" for name, value in values.items())
        logger.info("step %d  held out: %s", step, text)

    def picture(self, step: int, sheet: Tensor) -> None:
        """Writes a sample sheet as PNG and to TensorBoard."""
        folder = self.folder / "samples"
        folder.mkdir(exist_ok=True)
        path = folder / f"step-{step:08d}.png"
        temporary = path.with_suffix(".writing.png")
        to_image(sheet).save(temporary)
        temporary.replace(path)
        self._board.add_image("samples", (sheet.float().clamp(-1, 1) + 1) / 2, step)

    def _record(self, step: int, values: dict[str, Any], kind: str) -> None:
        for name, value in values.items():
            self._board.add_scalar(f"{kind}/{name}", value, step)
        self._log.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")

    def _speed(self) -> float:
        (start, first), (end, last) = self._window[0], self._window[-1]
        return (last - first) / (end - start) if end > start else 0.0
