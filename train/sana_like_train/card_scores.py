"""The scores of a card, from the report of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Scores = Mapping[str, Any]


def score_lines(scores: Scores) -> list[str]:
    """What a card says of a report: how it was measured, the numbers, and the aims reached.

    Raises `ValueError` for a report of no known evaluation.
    """
    kind = next((name for name, (key, _) in _KINDS.items() if key in scores), None)
    if kind is None:
        raise ValueError(f"a report with {sorted(scores)} is of none of {', '.join(_KINDS)}")
    reached = ", ".join(
        f"{name}: {'yes' if ok else 'no'}" for name, ok in scores["reached"].items()
    )
    return [
        f"Measured {scores['date'][:10]} on {scores['machine']} by "
        f"`sana-like train evaluate {kind}`.",
        "",
        *_KINDS[kind][1](scores),
        "",
        f"Aims reached: {reached}.",
    ]


def _reconstruction_scores(scores: Scores) -> list[str]:
    lines = ["| pictures of held-out concepts | PSNR | SSIM | count |", "|---|---|---|---|"]
    for background in ("white", "random_colour"):
        lines += [
            f"| {group}, on {background.replace('_', ' ')} | {s['psnr']:.2f} dB "
            f"| {s['ssim']:.4f} | {s['count']} |"
            for group, s in scores[background].items()
        ]
    return lines


def _clip_reconstruction_scores(scores: Scores) -> list[str]:
    motion = scores["motion"]
    names = {"all": "all frames", "first": "first frames", "later": "later frames"}
    return [
        f"{scores['count']} clips of exact motion of held-out concepts.",
        "",
        "| frames | PSNR | least | SSIM |",
        "|---|---|---|---|",
        *(
            f"| {name} | {s['psnr']:.2f} dB | {s['least_psnr']:.2f} dB | {s['ssim']:.4f} |"
            for name, s in ((name, scores["frames"][part]) for part, name in names.items())
        ),
        "",
        f"Clips whose motion is recognised: {motion['rebuilt']:.1%} "
        f"(of the originals {motion['true']:.1%}).",
    ]


def _picture_scores(scores: Scores) -> list[str]:
    lines = [
        f"Settings: {json.dumps(scores['settings'])}. Judged by the nearest pictures of the whole "
        "pack in EfficientNet-Lite0 features; in brackets what the autoencoder's reconstructions "
        "of the true pictures score, then what shuffled prompts score.",
        "",
        "| prompts | concept in top 5 | style in top 1 | group in top 1 | count |",
        "|---|---|---|---|---|",
    ]
    names = {
        "seen": "seen",
        "composition": "style never seen with that concept",
        "unseen": "concept never seen",
    }
    for part, name in names.items():
        made, rebuilt = scores[part]["generated"], scores[part]["reconstructions"]
        cells = [
            f"{made[key]:.1%} ({rebuilt[key]:.1%}; {made[f'shuffled_{key}']:.1%})"
            for key in ("concept_top5", "style_top1", "group_top1")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {made['count']} |")
    return lines


def _video_scores(scores: Scores) -> list[str]:
    lines = [
        f"Settings: {json.dumps(scores['settings'])}. The motion is named by fixed rules on "
        "optical flow, the concept of the middle frame by the nearest pictures of the whole pack "
        "in EfficientNet-Lite0 features; the last row is what the true clips score.",
        "",
        "| clips | motion as named | concept in top 5 | style in top 1 | count |",
        "|---|---|---|---|---|",
    ]
    names = {"text": "from text", "image": "from a picture", "true_clips": "true clips"}
    for part, name in names.items():
        concept = scores[part]["concept"]
        lines.append(
            f"| {name} | {scores[part]['motion']:.1%} | {concept['concept_top5']:.1%} "
            f"| {concept['style_top1']:.1%} | {scores[part]['count']} |"
        )
    kinds = scores["text"]["motion_by_kind"]
    lines += ["", "From text, by motion: " + ", ".join(f"{k} {v:.0%}" for k, v in kinds.items())]
    first = scores["image"]["first_frame_psnr"]
    lines[-1] += (
        f". The first frame of clips from a picture is at {first['mean']:.1f} dB to it "
        f"(at least {first['least']:.1f} dB)."
    )
    return lines


def _long_scores(scores: Scores) -> list[str]:
    concept, speed = scores["concept"], scores["speed"]
    settings, dead = scores["settings"], scores["stretches"]["dead"]
    seconds = settings["frames"] / settings["rate"]
    return [
        f"{scores['count']} videos of {seconds:.0f} s. Concept in the top 5 at the start "
        f"{concept['start']:.1%}, at the end {concept['end']:.1%} ({concept['kept']:.1%} of it).",
        f"Videos with a black, white or frozen stretch of more than a second: {len(dead)}.",
        f"A frame takes {1000 * speed['seconds_per_frame']:.0f} ms, "
        f"{speed['times_faster']:.1f} times less than {speed['teacher_steps']} steps with "
        "guidance.",
    ]


_KINDS: Mapping[str, tuple[str, Callable[[Scores], list[str]]]] = {
    "emoji": ("seen", _picture_scores),
    "autoencoder": ("white", _reconstruction_scores),
    "video-autoencoder": ("frames", _clip_reconstruction_scores),
    "emoji-video": ("true_clips", _video_scores),
    "emoji-long": ("stretches", _long_scores),
}
"""By evaluation: a key that its report alone has, and what a card makes of it."""
