"""From a recipe to a run: trains its task, exports it."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from pathlib import Path

from sana_like.folders import user_data
from sana_like_train import checkpoint
from sana_like_train.building import build_task
from sana_like_train.config import ConfigError, Recipe
from sana_like_train.loop import Result, Trainer
from sana_like_train.reading import dump, resolve

logger = logging.getLogger(__name__)


def runs_folder() -> Path:
    """Where runs live unless told otherwise: in the user's data folder."""
    return user_data() / "runs"


def run(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    runs: Path | None = None,
) -> Result:
    """Trains a recipe.

    Args:
        recipe: name of a recipe of the package, or the path of a YAML file.
        overrides: `section.key=value`.
        resume: continue from the newest checkpoint of the run of that name.
        runs: folder of all runs; the user's data folder if none.

    Returns:
        How the session ended, with the run's folder.

    Raises:
        ConfigError: the recipe cannot be used, or a run of that name exists and `resume` is off.
        CheckpointError: the checkpoint to resume is damaged or of another model.
        NonFiniteLossError: training diverged; the message names the samples.
    """
    resolved = resolve(recipe, list(overrides))
    folder = (runs or runs_folder()) / resolved.name
    latest = checkpoint.find(folder / "checkpoints")
    if latest and not resume:
        raise ConfigError(
            f"the run {resolved.name!r} has checkpoints in {folder}; continue it with --resume, "
            "or choose another name (name=...), or remove that folder"
        )
    if resume and not latest:
        raise ConfigError(f"there is no checkpoint to resume in {folder}; start without --resume")
    task = build_task(resolved)
    trainer = Trainer(resolved, task, folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(dump(resolved), encoding="utf-8")
    if latest:
        _tell_changes(latest, resolved)
        trainer.resume(latest)
    return trainer.fit()


def export(
    name: str, folder: Path, *, which: str = "best", runs: Path | None = None, int8: bool = False
) -> Path:
    """Writes the averaged weights of a run's checkpoint as a model folder.

    Args:
        name: of the run, or its folder.
        folder: to write.
        which: `best` or `latest`.
        runs: folder of all runs; the user's data folder if none.
        int8: store weights as int8 with a scale per output channel.

    Returns:
        The checkpoint that was exported.

    Raises:
        CheckpointError: the run has no such checkpoint.
    """
    base = Path(name) if Path(name).is_dir() else (runs or runs_folder()) / name
    path = checkpoint.find(base / "checkpoints", which)
    if path is None:
        raise checkpoint.CheckpointError(f"{base} has no {which} checkpoint")
    recipe = resolve(path / "recipe.yaml", ["train.precision=fp32"])
    trainer = Trainer(recipe, build_task(recipe), base)
    trainer.resume(path)
    trainer.with_averages(lambda: trainer.task.export(folder, int8=int8))
    return path


def _tell_changes(path: Path, recipe: Recipe) -> None:
    """Logs what differs from the recipe that a checkpoint was written with."""
    before = (path / "recipe.yaml").read_text(encoding="utf-8").splitlines()
    lines = difflib.unified_diff(before, dump(recipe).splitlines(), lineterm="", n=0)
    changes = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    if changes:
        logger.warning("the recipe has changed since %s: %s", path.name, "; ".join(changes))
