"""Does the emoji video model show what it was asked for, moving as it was asked to?

The committed prompts `LABEL, STYLE, MOTION` are made into clips. The motion is named by fixed rules
on optical flow, the concept of the middle frame by its nearest pictures, and clips that begin with
a given picture are compared with it. The loader's true clips of the same prompts, through the
autoencoder, are the ceiling.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sana_like.weights.files import write_json
from sana_like.weights.hub import resolve_folder
from sana_like_pipelines.media import contact_sheet, read_clip, write_clip
from sana_like_train.data.clips import unit_range
from sana_like_train.data.motion import MOTIONS
from sana_like_train.data.records import Record, load_records
from sana_like_train.data.video_prompts import VideoPrompt, VideoPromptList, load_video_prompts
from sana_like_train.evaluate.concept import ConceptJudge
from sana_like_train.evaluate.motion_rules import recognise_motion
from sana_like_train.evaluate.quality import psnr
from sana_like_train.evaluate.report import model_sources, save_png
from sana_like_train.evaluate.subset import spread

MOTION_BAR = 0.80
CONCEPT_BAR = 0.55
FIRST_FRAME_BAR = 24.0  # dB
_EQUAL = 99.0  # dB; what equal pictures count as
_SHEET_FRAMES = 5

Progress = Callable[[int, int], None]


def evaluate_video(
    model: str | Path,
    pack: str | Path,
    output: str | Path,
    limit: int | None = None,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    batch_size: int = 4,
    prompts: str | Path = "emoji_video_prompts",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make the clips of the committed prompts and score them.

    Clips already in `output` from the same weights and settings are not made again, so a stopped
    evaluation goes on where it was.

    Args:
        model: embedded name, folder or hub id of a `SanaVideoPipeline`.
        pack: the emoji pack of stills.
        output: folder for `emoji-video.json`, the sheet `emoji-video.png` and the clips.
        limit: use only so many prompts, spread over the list; None uses all.
        device, dtype: where and in what the pipeline runs.
        batch_size: clips made at once.
        prompts: name or path of the prompt list.
        progress: called with clips done and in all.

    Returns:
        What `emoji-video.json` holds.
    """
    from sana_like_pipelines import SanaImageToVideoPipeline, SanaVideoPipeline

    records = {record.key: record for record in load_records(pack)}
    lists = load_video_prompts(prompts)
    chosen = spread(lists.clips, limit)
    wanted = pictures_of(chosen, records, pack)
    folder = resolve_folder(model)
    pipe: Any = SanaVideoPipeline.from_pretrained(folder, dtype=dtype, device=device)
    driven: Any = SanaImageToVideoPipeline.from_pipe(pipe)
    for one in (pipe, driven):
        one.set_progress_bar_config(disable=True)
    report = {
        "model": str(model),
        **model_sources(folder, device),
        "settings": clip_settings(lists, dtype),
    }
    maker = _Maker(lists, Path(output), report, batch_size, progress, 2 * len(chosen))
    text_clips = maker.make("text", chosen, lambda batch: _from_text(pipe, batch, lists))
    truth = [prompt.clip(record) for prompt, record in zip(chosen, wanted, strict=True)]
    first = {
        prompt: clip.frames[0].movedim(0, -1).numpy()
        for prompt, clip in zip(chosen, truth, strict=True)
    }
    image_clips = maker.make(
        "image", chosen, lambda batch: _from_pictures(driven, batch, lists, first)
    )
    judge = ConceptJudge(list(records.values()), device)
    report["text"] = _clip_scores(text_clips, chosen, wanted, judge)
    report["image"] = _clip_scores(image_clips, chosen, wanted, judge)
    report["image"]["first_frame_psnr"] = _first_frame_scores(
        image_clips, [first[prompt] for prompt in chosen]
    )
    true_clips = [clip.frames.movedim(1, -1).numpy() for clip in truth]
    report["true_clips"] = _clip_scores(true_clips, chosen, wanted, judge)
    report["reached"] = {
        "motion": report["text"]["motion"] >= MOTION_BAR,
        "concept": report["text"]["concept"]["concept_top5"] >= CONCEPT_BAR,
        "first_frame": report["image"]["first_frame_psnr"]["least"] >= FIRST_FRAME_BAR,
    }
    save_png(clip_sheet(text_clips, chosen), Path(output) / "emoji-video.png")
    write_json(Path(output) / "emoji-video.json", report)
    return report


def pictures_of(
    prompts: Sequence[VideoPrompt], records: dict[str, Record], pack: str | Path
) -> list[Record]:
    """The pictures that prompts describe; raises `ValueError` where the pack lacks one."""
    missing = [one.key for one in prompts if one.key not in records]
    if missing:
        raise ValueError(
            f"{pack} lacks {len(missing)} pictures that the prompts describe, {missing[0]!r} among "
            "them; build the pack with `sana-like train data emoji`"
        )
    return [records[one.key] for one in prompts]


def clip_settings(lists: VideoPromptList, dtype: torch.dtype) -> dict[str, Any]:
    """The settings that all clips of a list share, for the report."""
    return {
        "steps": lists.steps,
        "guidance": lists.guidance,
        "height": lists.height,
        "width": lists.width,
        "frames": lists.frames,
        "rate": lists.rate,
        "dtype": str(dtype).removeprefix("torch."),
    }


def clip_sheet(clips: Sequence[np.ndarray], prompts: Sequence[VideoPrompt]) -> Image.Image:
    """A sheet with some frames of two clips of every motion, one clip a row."""
    pictures, labels = [], []
    for motion in MOTIONS:
        rows = [place for place, prompt in enumerate(prompts) if prompt.motion == motion]
        for place in rows[:2]:
            for frame in spread(range(len(clips[place])), _SHEET_FRAMES):
                pictures.append(Image.fromarray(clips[place][frame]))
                labels.append(prompts[place].prompt)
    return contact_sheet(pictures, labels, columns=2 * _SHEET_FRAMES, side=128)


class _Maker:
    """Makes clips in batches and keeps them as files, so that none is made twice."""

    def __init__(
        self,
        lists: VideoPromptList,
        output: Path,
        report: dict[str, Any],
        batch_size: int,
        progress: Progress | None,
        total: int,
    ) -> None:
        identity = json.dumps([report["weights_sha256"], report["settings"]], sort_keys=True)
        mark = hashlib.sha256(identity.encode()).hexdigest()[:12]
        self.folder = output / f"clips-{mark}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lists, self.batch_size = lists, batch_size
        self.progress, self.total, self.done = progress, total, 0

    def make(
        self,
        kind: str,
        prompts: Sequence[VideoPrompt],
        call: Callable[[Sequence[VideoPrompt]], Sequence[np.ndarray]],
    ) -> list[np.ndarray]:
        """Clips uint8 `[F, Y, X, 3]` of `prompts`, made or taken from an earlier run's files."""
        paths = {one: self.folder / f"{kind}-{one.key}-{one.seed}.webp" for one in prompts}
        todo = [one for one in prompts if not paths[one].is_file()]
        self.done += len(prompts) - len(todo)
        for start in range(0, len(todo), self.batch_size):
            batch = todo[start : start + self.batch_size]
            for one, clip in zip(batch, call(batch), strict=True):
                write_clip(clip, paths[one], self.lists.rate, quality=100)
            self.done += len(batch)
            if self.progress is not None:
                self.progress(self.done, self.total)
        return [read_clip(paths[one], self.lists.rate).frames for one in prompts]


def _arguments(batch: Sequence[VideoPrompt], lists: VideoPromptList) -> dict[str, Any]:
    return {
        "prompt": [one.prompt for one in batch],
        "height": lists.height,
        "width": lists.width,
        "frames": lists.frames,
        "num_inference_steps": lists.steps,
        "guidance_scale": lists.guidance,
        "generator": [one.seed for one in batch],
        "output_type": "np",
    }


def _from_text(
    pipe: Any, batch: Sequence[VideoPrompt], lists: VideoPromptList
) -> Sequence[np.ndarray]:
    return _levels(pipe(**_arguments(batch, lists)).frames)


def _from_pictures(
    pipe: Any,
    batch: Sequence[VideoPrompt],
    lists: VideoPromptList,
    first: dict[VideoPrompt, np.ndarray],
) -> Sequence[np.ndarray]:
    images = [Image.fromarray(first[one]) for one in batch]
    return _levels(pipe(image=images, **_arguments(batch, lists)).frames)


def _levels(clips: np.ndarray) -> list[np.ndarray]:
    """Clips `[B, F, Y, X, 3]` in [0, 1] as uint8, one for each."""
    return list(np.rint(np.asarray(clips) * 255).astype(np.uint8))


def _clip_scores(
    clips: Sequence[np.ndarray],
    prompts: Sequence[VideoPrompt],
    wanted: Sequence[Record],
    judge: ConceptJudge,
) -> dict[str, Any]:
    named = [recognise_motion(clip) for clip in clips]
    hits = [name == prompt.motion for name, prompt in zip(named, prompts, strict=True)]
    by_motion: dict[str, list[bool]] = {}
    for hit, prompt in zip(hits, prompts, strict=True):
        by_motion.setdefault(prompt.motion, []).append(hit)
    middle = [clip[len(clip) // 2] for clip in clips]
    return {
        "motion": round(float(np.mean(hits)), 4),
        "motion_by_kind": {
            name: round(float(np.mean(values)), 4) for name, values in by_motion.items()
        },
        "named": {
            f"{prompt.key}-{prompt.seed}": name for name, prompt in zip(named, prompts, strict=True)
        },
        "concept": judge.score(middle, wanted).as_dict(),
        "count": len(clips),
    }


def _first_frame_scores(
    clips: Sequence[np.ndarray], pictures: Sequence[np.ndarray]
) -> dict[str, float]:
    """PSNR in dB of the clips' first frames to the pictures they were given."""
    made = torch.from_numpy(np.stack([clip[0] for clip in clips])).movedim(-1, 1)
    given = torch.from_numpy(np.stack(pictures)).movedim(-1, 1)
    decibels = psnr(unit_range(made), unit_range(given)).clamp(max=_EQUAL)
    return {
        "mean": round(float(decibels.mean()), 2),
        "least": round(float(decibels.min()), 2),
        "share_above_bar": round(float((decibels >= FIRST_FRAME_BAR).double().mean()), 4),
    }
