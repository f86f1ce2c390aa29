"""Memory and time of a long video, frame by frame, and of one with a softmax cache for contrast.

`python -m sana_like_app.bench.stream JSON` measures one kind in a process of its own, since the
peak of a process never falls; `measure_both` starts one for each.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

FRAMES = (81, 321, 961, 2401)
SOFTMAX_FRAMES = 961  # a cache that grows makes every chunk dearer than the one before
KINDS = ("linear", "softmax")
WINDOW = 40
"""Frames over which a time is taken."""
WIDTH_HEADS, HEAD_WIDTH, LAYERS, CHUNK = 8, 32, 8, 3
GROWTH_BAR = 32.0  # MB from the second mark to the last
TIME_BAR = 0.15


@dataclass(frozen=True)
class Mark:
    """After so many frames: peak memory of the process in MB, bytes of the state, and the median
    seconds of a frame over the last window."""

    frames: int
    peak_mb: float
    state_bytes: int
    seconds_per_frame: float


def measure_both(
    frames: Sequence[int] = FRAMES, side: int = 256, model: str | None = None
) -> dict[str, Any]:
    """Measure a stream by linear attention and one by a softmax cache, each in its own process.

    Args:
        frames: where to look, rising.
        side: of the frames, in pixels.
        model: a `SanaLongVideoPipeline` to stream instead of random weights of the same kind; the
            softmax cache is always of random weights.

    Returns:
        The marks of both, and which bars the linear one reaches.
    """
    steps = [high - low for low, high in pairwise([0, *frames])]
    if len(frames) < 2 or min(steps) < WINDOW or frames[0] > SOFTMAX_FRAMES:
        raise ValueError(
            f"frames {list(frames)}: give two or more, rising by at least {WINDOW}, the first at "
            f"most {SOFTMAX_FRAMES}"
        )
    report: dict[str, Any] = {"frames": list(frames), "side": side, "model": model or "random"}
    for kind in KINDS:
        marks = [mark for mark in frames if kind == "linear" or mark <= SOFTMAX_FRAMES]
        task = {"kind": kind, "frames": marks, "side": side}
        task["model"] = model if kind == "linear" else None
        command = [sys.executable, "-m", __name__, json.dumps(task)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        report[kind] = json.loads(done.stdout.splitlines()[-1])
    report["reached"] = bars(report["linear"]["marks"], report["linear"]["flops"])
    return report


def bars(marks: Sequence[dict[str, Any]], flops: Sequence[int]) -> dict[str, bool]:
    """What a stream in constant memory and time has to keep."""
    growth = marks[-1]["peak_mb"] - marks[1]["peak_mb"]
    first, last = marks[0]["seconds_per_frame"], marks[-1]["seconds_per_frame"]
    return {
        "state_bytes": len({mark["state_bytes"] for mark in marks}) == 1,
        "memory": growth <= GROWTH_BAR,
        "time": abs(last - first) <= TIME_BAR * first,
        "operations": len(set(flops)) == 1,
    }


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Stream to a file and look at the marks; in this process."""
    import torch

    from sana_like_app.cli.progress import quiet_libraries
    from sana_like_pipelines.media import clip_writer

    quiet_libraries()
    pipe = _pipeline(task["model"], task["kind"])
    arguments = {"height": task["side"], "width": task["side"], "generator": 0}
    if task["model"] is None:
        width = pipe.transformer.config.caption_channels
        embeds = torch.randn(1, 16, width, generator=torch.Generator().manual_seed(0))
        arguments |= {"prompt_embeds": embeds, "prompt_attention_mask": torch.ones(1, 16)}
    stream = pipe.stream("a red apple" if task["model"] else None, **arguments)
    flops: list[int] = []
    marks: list[Mark] = []
    times: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        clip_writer(Path(folder) / "stream.mp4", stream.rate) as writer,
    ):
        began = time.perf_counter()
        for frame in _counted(stream, pipe, task["frames"][-1], flops):
            writer.write(frame)
            now = time.perf_counter()
            times.append(now - began)
            began = now
            if writer.count in task["frames"]:
                marks.append(_mark(writer.count, stream.state.nbytes, times))
                times.clear()
    return {"marks": [asdict(mark) for mark in marks], "flops": flops}


def _mark(count: int, state_bytes: int, times: list[float]) -> Mark:
    """Chunks come at once, so windows of whole chunks are compared, not single frames."""
    windows = [
        sum(times[start : start + WINDOW]) / WINDOW
        for start in range(0, len(times) - WINDOW + 1, WINDOW)
    ]
    unit = 1024 if sys.platform != "darwin" else 1024 * 1024  # Linux counts in kilobytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return Mark(count, round(peak, 1), state_bytes, round(statistics.median(windows[-3:]), 5))


def _counted(stream: Any, pipe: Any, last: int, flops: list[int]) -> Any:
    """The frames of a stream; operations of the second chunk and of a late one are counted."""
    from torch.utils.flop_counter import FlopCounterMode

    chunk = pipe.codec.pixel_frames(pipe.trained_for.chunk, start=False)
    start = pipe.codec.pixel_frames(pipe.trained_for.chunk)
    # Frames whose taking makes the chunk that is counted.
    wanted = {start + 1, start + (last - start) // chunk * chunk - chunk + 1}
    for number in range(1, last + 1):
        if number not in wanted:
            yield next(stream)
            continue
        with FlopCounterMode(display=False) as counter:
            frame = next(stream)
        flops.append(counter.get_total_flops())
        yield frame


def _pipeline(model: str | None, kind: str) -> Any:
    """The model asked for, or random weights of its kind, with the embedded autoencoder's."""
    import torch

    from sana_like import (
        AutoencoderDC,
        AutoencoderDCVideo,
        FlowEulerScheduler,
        SanaVideoTransformer3DModel,
    )
    from sana_like_pipelines import SanaLongVideoPipeline, VideoSettings

    if model is not None:
        pipe = SanaLongVideoPipeline.from_pretrained(model)
        pipe.set_progress_bar_config(disable=True)
        return pipe
    torch.manual_seed(0)
    width = WIDTH_HEADS * HEAD_WIDTH
    transformer = SanaVideoTransformer3DModel(
        in_channels=32, out_channels=32, num_attention_heads=WIDTH_HEADS,
        attention_head_dim=HEAD_WIDTH, num_layers=LAYERS, num_cross_attention_heads=WIDTH_HEADS,
        cross_attention_head_dim=HEAD_WIDTH, cross_attention_dim=width, caption_channels=576,
        mlp_ratio=3.0, sample_size=8, patch_size=(1, 1, 1), self_attention=kind,
    ).eval()  # fmt: skip
    return SanaLongVideoPipeline(
        None,
        None,
        AutoencoderDCVideo.from_image(AutoencoderDC.from_pretrained("emoji-ae")).eval(),
        transformer,
        FlowEulerScheduler(),
        video_settings=VideoSettings(
            256, 256, 25, Fraction(8), chunk=CHUNK, levels=(1.0, 0.96, 0.889, 0.727)
        ),
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1]))) + "\n")
