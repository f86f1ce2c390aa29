"""`sana-like video`: clips and streams to files, continued, interrupted, and made again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sana_like import FlowEulerScheduler
from sana_like.text.settings import TextSettings
from sana_like_pipelines import SanaLongVideoPipeline, SanaVideoPipeline
from sana_like_pipelines.media import probe_clip, read_clip, read_recipe
from tests.pipelines import conftest as tiny
from tests.pipelines.video import conftest as tiny_video


@pytest.fixture(scope="session")
def video_folders(tmp_path_factory):
    """`clip` and `long`: tiny models with random weights."""
    parts = {
        "tokenizer": tiny.tiny_tokenizer(),
        "text_encoder": tiny.tiny_encoder(),
        "vae": tiny_video.lively(tiny_video.AutoencoderDCVideo(**tiny_video.VAE), 2),
        "transformer": tiny_video.lively(
            tiny_video.SanaVideoTransformer3DModel(**tiny_video.TRANSFORMER), 3
        ),
        "scheduler": FlowEulerScheduler(shift=2.0),
        "text_settings": TextSettings(instruction="Tell: ", max_sequence_length=24),
        "video_settings": tiny_video.SETTINGS,
    }
    folders = {}
    for name, kind in (("clip", SanaVideoPipeline), ("long", SanaLongVideoPipeline)):
        folders[name] = tmp_path_factory.mktemp(name)
        kind(**parts).save_pretrained(folders[name])
    return folders


def test_clip_of_the_trained_length(cli, video_folders):
    done = cli("video", "a cat", "--model", video_folders["clip"], "--steps", 2, "--seed", 3)
    assert done.code == 0, done.err
    (path,) = done.paths
    assert path == Path("outputs/a-cat-3.mp4")
    info = probe_clip(path)
    assert (info.width, info.height, info.frames, info.rate) == (64, 64, 9, 8)
    recipe = read_recipe(path)
    assert (recipe["prompt"], recipe["seed"], recipe["settings"]["frames"]) == ("a cat", 3, 9)
    assert "seed 3" in done.err and "1.12 s" in done.err


@pytest.mark.parametrize("name", ["out.webp", "out.gif", "out.mp4"])
def test_stream_of_any_length_size_and_format(cli, video_folders, name):
    done = cli(
        "video", "a", "--model", video_folders["long"], "--seconds", 2, "--size", "50x70",
        "--seed", 1, "--output", name,
    )  # fmt: skip
    assert done.code == 0, done.err
    clip = read_clip(name, 8)
    assert clip.frames.shape == (16, 70, 50, 3)
    assert json.loads(Path(f"{name}.json").read_text("utf-8"))["frames_written"] == 16


def test_folder_of_frames(cli, video_folders):
    done = cli(
        "video", "a", "--model", video_folders["long"], "--frames", 3, "--seed", 1,
        "--format", "frames", "--output", "made",
    )  # fmt: skip
    assert done.code == 0, done.err
    (path,) = done.paths
    assert path.is_dir() and len(list(path.glob("*.png"))) == 3


def test_state_is_saved_and_gone_on_with(cli, video_folders):
    common = ("--model", video_folders["long"], "--format", "frames")
    whole = cli("video", "a", *common, "--frames", 14, "--seed", 1, "--output", "whole")
    first = cli(
        "video", "a", *common, "--frames", 6, "--seed", 1, "--output", "one", "--save-state"
    )
    assert (whole.code, first.code) == (0, 0), whole.err + first.err
    video, state = first.paths
    assert state.name.endswith(".state.safetensors")
    rest = cli("video", "--resume", state, *common, "--frames", 8, "--output", "two")
    assert rest.code == 0, rest.err
    made = np.concatenate([read_clip(video).frames, read_clip(rest.paths[0]).frames])
    assert np.array_equal(made, read_clip(whole.paths[0]).frames)
    again = cli("rerun", f"{rest.paths[0]}.json")
    assert again.code == 1 and "--resume" in again.err


def test_interrupt_keeps_what_was_finished(cli, video_folders, monkeypatch):
    from sana_like_pipelines.media.clip_formats import FolderWriter

    add = FolderWriter._add

    def interrupting(self, pixels):
        add(self, pixels)
        if self.count == 6:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(FolderWriter, "_add", interrupting)
    done = cli(
        "video", "a", "--model", video_folders["long"], "--seconds", 600, "--seed", 1,
        "--format", "frames", "--output", "made",
    )  # fmt: skip
    assert done.code == 130
    video, state = done.paths
    assert len(read_clip(video).frames) == 7
    assert state.is_file()
    assert "--resume" in done.err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_picture_to_begin_with(cli, video_folders):
    Image.new("RGB", (80, 40), "red").save("in.png")
    done = cli(
        "video", "a", "--model", video_folders["clip"], "--image", "in.png", "--steps", 1,
        "--frames", 2, "--seed", 1, "--image-fit", "pad", "--size", "64x64",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert read_recipe(done.paths[0])["fitted"][0]["how"] == "pad"


@pytest.mark.parametrize("kind", ["clip", "long"])
def test_rerun_gives_the_same_bytes(cli, video_folders, kind):
    model = video_folders[kind]
    Path("one").mkdir()
    steps = ("--steps", 2) if kind == "clip" else ()
    done = cli(
        "video", "a b", "--model", model, "--frames", 7, "--seed", 5, *steps, "--output", "one"
    )
    assert done.code == 0, done.err
    again = cli("rerun", done.paths[0], "--output", "two.mp4")
    assert again.code == 0, again.err
    frames = [read_clip(path).frames for path in (done.paths[0], "two.mp4")]
    assert np.array_equal(*frames)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no prompt"),
        (["a", "--seconds", "1", "--frames", "3"], "not both"),
        (["a", "--seconds", "-1"], "--seconds"),
        (["a", "--frames", "0"], "--frames is 0"),
        (["a", "--image", "none.png"], "does not exist"),
        (["a", "--image-fit", "cut"], "needs --image"),
        (["--resume", "none"], "does not exist"),
        (["a", "--format", "avi"], "mp4, webp, gif, frames"),
        (["a", "--output", "a.avi"], ".mp4, .webp, .gif"),
        (["a", "--guidance-scale", "nan"], "guidance scale"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_model_is_loaded(cli, arguments, message):
    done = cli("video", *arguments, "--model", "no-such-model")
    assert done.code == 1
    assert message in done.err and len(done.err.strip().splitlines()) == 1


def test_a_picture_model_makes_no_videos(cli, folders):
    done = cli("video", "a", "--model", folders("sana"))
    assert done.code == 1 and "sana-like generate" in done.err
