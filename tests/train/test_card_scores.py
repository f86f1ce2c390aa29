"""Cards say what the reports of every evaluation say."""

import pytest

from sana_like_train.card_scores import score_lines

COMMON = {"date": "2030-01-02T03:04", "machine": "a machine", "reached": {"motion": True}}
CONCEPT = {"concept_top5": 0.6, "style_top1": 0.9}
CLIPS = {"motion": 0.85, "motion_by_kind": {"grows": 1.0}, "concept": CONCEPT, "count": 100}


def test_video():
    report = {
        **COMMON,
        "settings": {"steps": 30},
        "text": CLIPS,
        "image": {**CLIPS, "first_frame_psnr": {"mean": 30.0, "least": 24.5}},
        "true_clips": CLIPS,
    }
    text = "\n".join(score_lines(report))
    for part in ("evaluate emoji-video", "85.0%", "60.0%", "24.5 dB", "grows 100%", "motion: yes"):
        assert part in text


def test_long_video():
    report = {
        **COMMON,
        "settings": {"frames": 480, "rate": 8},
        "concept": {"start": 0.8, "end": 0.7, "kept": 0.875},
        "stretches": {"dead": ["long-a-1"]},
        "speed": {"seconds_per_frame": 0.1, "times_faster": 5.0, "teacher_steps": 50},
        "count": 10,
    }
    text = "\n".join(score_lines(report))
    for part in ("10 videos of 60 s", "87.5%", "second: 1", "100 ms", "5.0 times"):
        assert part in text


def test_autoencoder():
    table = {"all": {"psnr": 32.5, "ssim": 0.96, "count": 7}}
    text = "\n".join(score_lines({**COMMON, "white": table, "random_colour": table}))
    assert "evaluate autoencoder" in text and "32.50 dB" in text


def test_unknown_reports():
    with pytest.raises(ValueError, match="none of emoji, autoencoder"):
        score_lines(COMMON)
