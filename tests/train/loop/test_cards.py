"""Cards say what the run, the weights and the report say, and refuse a report of other weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sana_like_train.cards import write_card
from sana_like_train.evaluate.report import weights_sha256
from sana_like_train.running import export, run

SCORES = {
    "generated": {"concept_top5": 0.5, "style_top1": 0.75, "group_top1": 0.8, "count": 4},
    "reconstructions": {"concept_top5": 0.9, "style_top1": 1.0, "group_top1": 0.95, "count": 4},
}
for kind in SCORES.values():
    kind |= {f"shuffled_{k}": 0.01 for k in ("concept_top5", "style_top1", "group_top1")}


def report_of(folder: Path, path: Path, scores: dict[str, Any]) -> Path:
    report = {
        "date": "2030-01-02T03:04:05+00:00",
        "machine": "Linux; cpu: x",
        "weights_sha256": {"model": weights_sha256(folder)},
        **scores,
    }
    path.write_text(json.dumps(report))
    return path


def test_card_of_an_autoencoder(
    autoencoder_recipe: dict[str, Any], write_recipe: Callable[..., Path], tmp_path: Path
) -> None:
    run(
        write_recipe(autoencoder_recipe),
        ["train.max_steps=2", "train.schedule.warmup_steps=0"],
        runs=tmp_path,
    )
    folder = tmp_path / "out"
    export("tiny-ae", folder, runs=tmp_path, which="latest")
    group = {"all": {"psnr": 31.25, "ssim": 0.9431, "count": 6}}
    scores = {"white": group, "random_colour": group, "reached": {"white": False}}
    report = report_of(folder, tmp_path / "report.json", scores)
    text = write_card(folder, tmp_path / "tiny-ae", report).read_text()
    assert "2 steps of 4 samples (8 in all)" in text
    assert "18 pictures of 6 concepts" in text
    assert "Fluent Emoji in 3D (Microsoft, MIT)" in text
    assert "31.25 dB | 0.9431 | 6" in text
    assert "white: no" in text
    export("tiny-ae", folder, runs=tmp_path, which="latest", int8=True)
    with pytest.raises(ValueError, match="evaluate this export first"):
        write_card(folder, tmp_path / "tiny-ae", report)


def test_card_of_a_text_to_image_model(
    flow_recipe: dict[str, Any], write_recipe: Callable[..., Path], tmp_path: Path
) -> None:
    run(
        write_recipe(flow_recipe),
        ["train.max_steps=2", "train.schedule.warmup_steps=0"],
        runs=tmp_path,
    )
    folder = tmp_path / "out"
    export("tiny-flow", folder, runs=tmp_path, which="latest")
    parts = dict.fromkeys(("seen", "composition", "unseen"), SCORES)
    scores = {**parts, "settings": {"steps": 20}, "reached": {"seen_style": True}}
    report = report_of(folder, tmp_path / "report.json", scores)
    text = write_card(folder, tmp_path / "tiny-flow", report).read_text()
    assert "| concept never seen | 50.0% (90.0%; 1.0%)" in text
    assert "seen_style: yes" in text
    assert "muon" in text


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("video_recipe", "text-to-video model: English prompts `THING, STYLE, MOTION` to 32x32"),
        ("pairs_recipe", "2 steps for each chunk of 2 latent frames"),
        ("video_autoencoder_recipe", "An autoencoder of clips: 32x32 frames"),
    ],
)
def test_cards_of_video_models_say_what_they_are_and_what_they_saw(
    kind: str,
    what: str,
    request: pytest.FixtureRequest,
    write_recipe: Callable[..., Path],
    tmp_path: Path,
) -> None:
    recipe = request.getfixturevalue(kind)
    changes = ["train.max_steps=1", "train.schedule.warmup_steps=0", "train.evaluate_steps=null"]
    run(write_recipe(recipe), [*changes, "train.sample_steps=null"], runs=tmp_path)
    folder = tmp_path / "out"
    export(recipe["name"], folder, runs=tmp_path, which="latest")
    scores = {
        "concept": {"start": 0.5, "end": 0.4, "kept": 0.8},
        "stretches": {"dead": []},
        "settings": {"frames": 480, "rate": 8},
        "count": 3,
        "reached": {"alive": True},
        "speed": {"seconds_per_frame": 0.1, "times_faster": 5, "teacher_steps": 50},
    }
    report = report_of(folder, tmp_path / "report.json", scores)
    text = write_card(folder, tmp_path / recipe["name"], report).read_text()
    assert what in text
    assert "18 pictures of 6 concepts" in text and "clips of exact motion drawn of them" in text
    assert "Fluent Emoji, animated (Microsoft, MIT)" in text
