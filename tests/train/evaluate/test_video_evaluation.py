"""The evaluations of video models, by pipelines that know the answers or do not."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

pytest.importorskip("cv2")

import sana_like_pipelines
from sana_like_train.data.motion import plan_clip
from sana_like_train.data.motion_clips import draw_clip, motion_clip, premultiplied
from sana_like_train.data.records import load_records
from sana_like_train.data.video_prompts import VideoPrompt, VideoPromptList
from sana_like_train.evaluate import concept, features
from sana_like_train.evaluate.long_video import evaluate_long_video
from sana_like_train.evaluate.video import evaluate_video

SIDE = 64
MOTIONS = ("moves left", "moves down", "bounces", "grows", "stands still")


class ColourFeatures(nn.Module):
    """The colour in the middle of a picture."""

    def forward(self, pictures):
        side = pictures.shape[-1] // 4
        middle = pictures[..., side:-side, side:-side].mean((2, 3))
        return F.normalize(torch.cat([middle, torch.ones(len(middle), 1)], dim=1), dim=1)


class Player:
    """A pipeline that shows the true clip of a prompt, or what `answer` makes of it."""

    trained_for = SimpleNamespace(rate=8)

    def __init__(self, clips, answer=lambda clip: clip):
        self.clips, self.answer, self.calls = clips, answer, []

    def set_progress_bar_config(self, *, disable):
        assert disable

    def __call__(self, prompt, *, frames, **arguments):
        prompts = [prompt] if isinstance(prompt, str) else prompt
        self.calls.append((prompts, arguments))
        made = [self.answer(self.clips[text]) for text in prompts]
        return SimpleNamespace(frames=np.stack(made) / 255)

    def stream(self, prompt, *, frames, **arguments):
        assert arguments["output_type"] == "np"
        yield from self.answer(self.clips[f"long {prompt}"])[:frames] / 255


@pytest.fixture
def stage(emoji_pack, tmp_path, monkeypatch):
    pack = emoji_pack(10, side=SIDE)
    records = [one for one in load_records(pack) if one.style == "flat"]
    prompts = [
        VideoPrompt(f"{records[i].label}, {MOTIONS[i]}", records[i].key, MOTIONS[i], i)
        for i in range(len(MOTIONS))
    ]
    long = [VideoPrompt("one", records[5].key, "bounces", 5)]
    lists = VideoPromptList(2, 3.0, SIDE, SIDE, 25, 8, 10, tuple(prompts), tuple(long))
    (tmp_path / "prompts.json").write_text(lists.to_json(), encoding="utf-8")
    model = tmp_path / "model"
    model.mkdir()
    (model / "model_index.json").write_text("{}")
    save_file({"w": torch.ones(2)}, model / "model.safetensors")

    def small(record, **options):
        return motion_clip(record, side=SIDE, **options)

    monkeypatch.setattr("sana_like_train.data.video_prompts.motion_clip", small)
    clips = {
        one.prompt: one.clip(record).frames.movedim(1, -1).numpy()
        for one, record in zip(prompts, records, strict=False)
    }
    plan = plan_clip("a", seed=0, motions=["bounces"], background="white")
    film = draw_clip(premultiplied(records[5].open_image()), plan, frames=81, side=SIDE)
    clips["long one"] = film.movedim(1, -1).numpy()
    player = Player(clips)
    source = SimpleNamespace(from_pretrained=lambda *_, **__: player, from_pipe=lambda _: player)
    for name in ("SanaVideoPipeline", "SanaImageToVideoPipeline", "SanaLongVideoPipeline"):
        monkeypatch.setattr(sana_like_pipelines, name, source, raising=False)
    monkeypatch.setattr(concept, "FeatureExtractor", ColourFeatures)
    monkeypatch.setattr(features, "user_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(features, "FEATURE_WIDTH", 4)
    arguments = {"prompts": tmp_path / "prompts.json"}
    return SimpleNamespace(
        player=player,
        output=tmp_path / "out",
        video=lambda: evaluate_video(model, pack, tmp_path / "out", batch_size=2, **arguments),
        long=lambda **more: evaluate_long_video(
            model, pack, tmp_path / "out", teacher=model, **arguments, **more
        ),
    )


def test_true_clips_reach_every_bar(stage):
    report = stage.video()
    assert all(report["reached"].values()), report
    assert report["text"] == report["true_clips"] | {"named": report["text"]["named"]}
    assert report["image"]["first_frame_psnr"]["least"] == 99.0
    assert json.loads((stage.output / "emoji-video.json").read_text("utf-8")) == report
    assert (stage.output / "emoji-video.png").is_file()
    calls = stage.player.calls
    assert calls[0][1]["num_inference_steps"] == 2 and calls[0][1]["generator"] == [0, 1]
    assert "image" in calls[-1][1]
    stage.video()
    assert len(stage.player.calls) == len(calls)  # what is there is not made again


def test_clips_backwards_and_of_other_colours_do_not(stage):
    stage.player.answer = lambda clip: 255 - clip[::-1]
    report = stage.video()
    named = report["text"]["motion_by_kind"]
    assert (named["moves left"], named["grows"], named["stands still"]) == (0, 0, 1)
    assert not any(report["reached"].values())


def test_long_videos(stage):
    report = stage.long()
    assert report["reached"]["concept_kept"] and report["reached"]["no_dead_stretch"]
    assert report["settings"]["frames"] == 81
    stage.player.answer = lambda clip: np.concatenate([clip[:40], np.zeros_like(clip[40:])])
    broken = stage.long()
    assert broken["stretches"]["longest"]["long-1f005_flat-5"]["black"] > 5
    assert not broken["reached"]["concept_kept"] and not broken["reached"]["no_dead_stretch"]
