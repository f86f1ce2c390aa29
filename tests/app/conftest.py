"""Tiny pipeline folders and a way to run the command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sana_like.text.settings import TextSettings
from sana_like_app.cli.main import main
from sana_like_pipelines import SanaControlNetPipeline, SanaPipeline, SanaSprintPipeline
from sana_like_pipelines.preview import LatentRGB
from tests.pipelines import conftest as tiny

SETTINGS = TextSettings(instruction="Tell: ", max_sequence_length=24)
STOCK = {
    "sana": (SanaPipeline, tiny.stock_sana),
    "sprint": (SanaSprintPipeline, tiny.stock_sprint),
    "controlnet": (SanaControlNetPipeline, tiny.stock_controlnet),
}


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def paths(self) -> list[Path]:
        """What the lines of stdout begin with."""
        return [Path(line.split("  ")[0]) for line in self.out.splitlines()]


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Run `sana-like ARGUMENTS` from an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Outcome:
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Pipeline folders with random weights: `sana`, `sprint`, `controlnet`. Not to be changed."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            pipeline, stock = STOCK[kind]
            published = tmp_path_factory.mktemp("published")
            stock().save_pretrained(published)
            pipe = pipeline.from_pretrained(published)
            pipe.text_settings = SETTINGS
            generator = torch.Generator().manual_seed(5)
            weight = torch.randn(12, 4, generator=generator) / 4
            pipe.latent_rgb = LatentRGB(2, weight, torch.zeros(12))
            made[kind] = tmp_path_factory.mktemp(kind)
            pipe.save_pretrained(made[kind])
        return made[kind]

    return get


@pytest.fixture
def sana(folders: Callable[[str], Path]) -> Path:
    """A folder of `SanaPipeline`; 32 px pictures by default."""
    return folders("sana")
