"""Does a long video stay what it was? The concept at its end against its start, and dead stretches.

Every committed prompt of `long` is streamed for a minute. The concept is judged on several frames
of the first and of the last seconds; black, white and frozen stretches are counted over all of it;
and the time a frame takes is compared with that of the many-step model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sana_like.weights.files import write_json
from sana_like.weights.hub import resolve_folder
from sana_like_pipelines.media import clip_writer, contact_sheet, stream_clip
from sana_like_train.data.records import Record, load_records
from sana_like_train.data.video_prompts import VideoPrompt, VideoPromptList, load_video_prompts
from sana_like_train.evaluate.concept import ConceptJudge
from sana_like_train.evaluate.report import model_sources, save_png
from sana_like_train.evaluate.subset import spread
from sana_like_train.evaluate.video import Progress, clip_settings, pictures_of

CONCEPT_BAR = 0.80  # of the score at the start
SPEED_BAR = 4.0
TEACHER_STEPS = 50
JUDGED_SECONDS = 3
JUDGED_FRAMES = 8
DEAD_SECONDS = 1.0
# Of 255: means that are black or white all over, a spread without a picture, a step without motion.
_BLACK, _WHITE, _FLAT, _FROZEN = 8.0, 250.0, 2.0, 0.02
_STILL = "stands still"


@dataclass(frozen=True)
class Stretches:
    """Longest stretch of a video, in seconds, that is black, white, of one colour, or frozen."""

    black: float
    white: float
    flat: float
    frozen: float

    def dead(self, *, may_stand_still: bool = False) -> bool:
        """Whether one of them is too long; only a picture that is to stand still may be frozen."""
        parts = [self.black, self.white, self.flat]
        return max(parts if may_stand_still else [*parts, self.frozen]) > DEAD_SECONDS


def find_stretches(frames: Iterable[np.ndarray], rate: float) -> Stretches:
    """Look a video over, frame by frame, uint8 `[Y, X, 3]`."""
    longest = dict.fromkeys(("black", "white", "flat", "frozen"), 0)
    running = dict(longest)
    before: np.ndarray | None = None
    for frame in frames:
        mean, spread_ = float(frame.mean()), float(frame.reshape(-1, 3).std(axis=0).max())
        change = np.inf if before is None else np.abs(frame.astype(np.int16) - before).mean()
        seen = {
            "black": mean < _BLACK,
            "white": mean > _WHITE and spread_ < _FLAT,
            "flat": spread_ < _FLAT,
            "frozen": change < _FROZEN,
        }
        for kind, is_so in seen.items():
            running[kind] = running[kind] + 1 if is_so else 0
            longest[kind] = max(longest[kind], running[kind])
        before = frame
    return Stretches(**{kind: round(count / rate, 3) for kind, count in longest.items()})


def evaluate_long_video(
    model: str | Path,
    pack: str | Path,
    output: str | Path,
    limit: int | None = None,
    *,
    teacher: str | Path = "emoji-video",
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    prompts: str | Path = "emoji_video_prompts",
    seconds: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Stream the committed prompts of `long` to files and score them.

    Args:
        model: embedded name, folder or hub id of a `SanaLongVideoPipeline`.
        pack: the emoji pack of stills.
        output: folder for `emoji-long.json`, the sheet `emoji-long.png` and the videos.
        limit: use only so many prompts.
        teacher: the many-step model whose time per frame is compared.
        device, dtype: where and in what the pipelines run.
        prompts: name or path of the prompt list.
        seconds: length of the videos; None is what the list says.
        progress: called with frames done and in all.

    Returns:
        What `emoji-long.json` holds.
    """
    from sana_like_pipelines import SanaLongVideoPipeline

    records = {record.key: record for record in load_records(pack)}
    lists = load_video_prompts(prompts)
    chosen = spread(lists.long, limit)
    wanted = pictures_of(chosen, records, pack)
    count = (seconds or lists.long_seconds) * lists.rate + 1
    folder = resolve_folder(model)
    pipe: Any = SanaLongVideoPipeline.from_pretrained(folder, dtype=dtype, device=device)
    pipe.set_progress_bar_config(disable=True)
    written = Path(output)
    written.mkdir(parents=True, exist_ok=True)
    paths, times = [], []
    for place, prompt in enumerate(chosen):
        told = None if progress is None else _counting(progress, place * count, len(chosen) * count)
        path = written / f"long-{prompt.key}-{prompt.seed}.mp4"
        times.append(_stream(pipe, prompt, lists, count, path, told))
        paths.append(path)
    report = {
        "model": str(model),
        **model_sources(folder, device),
        "settings": {**clip_settings(lists, dtype), "frames": count, "steps": None},
        "concept": _concepts(paths, lists, wanted, ConceptJudge(list(records.values()), device)),
        "stretches": _stretches(paths, chosen, lists.rate),
        "speed": _speed(times, count, teacher, lists, dtype, device),
        "count": len(chosen),
    }
    report["reached"] = {
        "concept_kept": report["concept"]["kept"] >= CONCEPT_BAR,
        "no_dead_stretch": not report["stretches"]["dead"],
        "speed": report["speed"]["times_faster"] >= SPEED_BAR,
    }
    save_png(_sheet(paths, chosen, count), written / "emoji-long.png")
    write_json(written / "emoji-long.json", report)
    return report


def _stream(
    pipe: Any,
    prompt: VideoPrompt,
    lists: VideoPromptList,
    count: int,
    path: Path,
    told: Callable[[int], None] | None,
) -> float:
    """Stream one video to a file; returns the seconds of computing."""
    begin = time.perf_counter()
    with clip_writer(path, lists.rate, {"prompt": prompt.prompt, "seed": prompt.seed}) as writer:
        for frame in pipe.stream(
            prompt.prompt,
            frames=count,
            height=lists.height,
            width=lists.width,
            generator=prompt.seed,
            output_type="np",
        ):
            writer.write(np.clip(frame, 0.0, 1.0))
            if told is not None:
                told(writer.count)
    return time.perf_counter() - begin


def _counting(progress: Progress, before: int, total: int) -> Callable[[int], None]:
    return lambda done: progress(before + done, total)


def _concepts(
    paths: Sequence[Path], lists: VideoPromptList, wanted: Sequence[Record], judge: ConceptJudge
) -> dict[str, Any]:
    """Share of frames, at the start and at the end, whose concept is among the five nearest."""
    scores: dict[str, list[bool]] = {"start": [], "end": []}
    for path, record in zip(paths, wanted, strict=True):
        frames = list(stream_clip(path, lists.rate))
        span = min(JUDGED_SECONDS * lists.rate, len(frames))
        for part, window in (("start", frames[:span]), ("end", frames[-span:])):
            judged = spread(window, JUDGED_FRAMES)
            scores[part] += judge.top5(judged, [record] * len(judged))
    start, end = (float(np.mean(scores[part])) for part in ("start", "end"))
    return {
        "start": round(start, 4),
        "end": round(end, 4),
        "kept": round(end / start, 4) if start else 0.0,
    }


def _stretches(paths: Sequence[Path], prompts: Sequence[VideoPrompt], rate: int) -> dict[str, Any]:
    found = {
        path.stem: (find_stretches(stream_clip(path, rate), rate), prompt.motion == _STILL)
        for path, prompt in zip(paths, prompts, strict=True)
    }
    return {
        "longest": {name: asdict(stretches) for name, (stretches, _) in found.items()},
        "dead": [
            name
            for name, (stretches, still) in found.items()
            if stretches.dead(may_stand_still=still)
        ],
    }


def _speed(
    times: Sequence[float],
    count: int,
    teacher: str | Path,
    lists: VideoPromptList,
    dtype: torch.dtype,
    device: str,
) -> dict[str, float]:
    """Seconds a frame of the streams, and of one clip by the many-step model with guidance."""
    from sana_like_pipelines import SanaVideoPipeline

    pipe: Any = SanaVideoPipeline.from_pretrained(teacher, dtype=dtype, device=device)
    pipe.set_progress_bar_config(disable=True)
    settings = {"height": lists.height, "width": lists.width, "frames": lists.frames}
    pipe(lists.clips[0].prompt, num_inference_steps=1, generator=0, **settings)
    begin = time.perf_counter()
    pipe(
        lists.clips[0].prompt,
        num_inference_steps=TEACHER_STEPS,
        guidance_scale=lists.guidance,
        generator=0,
        **settings,
    )
    many = (time.perf_counter() - begin) / lists.frames
    few = sum(times) / (len(times) * count)
    return {
        "seconds_per_frame": round(few, 4),
        "teacher_seconds_per_frame": round(many, 4),
        "teacher_steps": TEACHER_STEPS,
        "times_faster": round(many / few, 2),
    }


def _sheet(paths: Sequence[Path], prompts: Sequence[VideoPrompt], count: int) -> Image.Image:
    """Ten frames of each video, spread over its length, one video a row."""
    pictures, labels = [], []
    wanted = set(spread(range(count), 10))
    for path, prompt in zip(paths, prompts, strict=True):
        for place, frame in enumerate(stream_clip(path)):
            if place in wanted:
                pictures.append(Image.fromarray(frame))
                labels.append(prompt.prompt)
    return contact_sheet(pictures, labels, columns=len(wanted), side=128)
