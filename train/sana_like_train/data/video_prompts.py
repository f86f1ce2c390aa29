"""The committed prompts by which an emoji video model is scored, and the clips they describe."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sana_like_train.data.captions import emoji_prompt
from sana_like_train.data.motion import (
    CLIP_FRAMES,
    CLIP_RATE,
    MOTIONS,
    PLAIN_BACKGROUND,
    motion_prompt,
)
from sana_like_train.data.motion_clips import MotionClip, motion_clip, visible_motions
from sana_like_train.data.records import Record
from sana_like_train.data.split import Split, read_split_file

PROMPTS_PER_MOTION = 10
LONG_PROMPTS = 10
LONG_SECONDS = 60


@dataclass(frozen=True, slots=True)
class VideoPrompt:
    """One prompt `LABEL, STYLE, MOTION`, the key of its picture, and the seed of its noise."""

    prompt: str
    key: str
    motion: str
    seed: int

    def clip(self, record: Record) -> MotionClip:
        """The true clip: what the loader draws of the picture, on white."""
        return motion_clip(
            record, seed=self.seed, motions=[self.motion], background=PLAIN_BACKGROUND
        )


@dataclass(frozen=True, slots=True)
class VideoPromptList:
    """Prompts with the settings they are sampled with.

    Attributes:
        steps, guidance, height, width, frames, rate: of a clip.
        clips: prompts for clips, equally many of every motion.
        long_seconds: length of the long videos.
        long: prompts for long videos, of motions that have no end.
    """

    steps: int
    guidance: float
    height: int
    width: int
    frames: int
    rate: int
    long_seconds: int
    clips: tuple[VideoPrompt, ...]
    long: tuple[VideoPrompt, ...]

    def to_json(self) -> str:
        """Return the list as the text of its file, one prompt a line."""
        names = ("steps", "guidance", "height", "width", "frames", "rate", "long_seconds")
        lines = [f" {json.dumps(name)}: {json.dumps(getattr(self, name))}" for name in names]
        for part in ("clips", "long"):
            rows = ",\n".join(
                f"  {json.dumps([one.prompt, one.key, one.motion, one.seed], ensure_ascii=False)}"
                for one in getattr(self, part)
            )
            lines.append(f" {json.dumps(part)}: [\n{rows}\n ]")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def make_video_prompts(
    records: Sequence[Record],
    split: Split,
    *,
    steps: int,
    guidance: float,
    size: int = 256,
    count: int = PROMPTS_PER_MOTION,
    long_count: int = LONG_PROMPTS,
) -> VideoPromptList:
    """Choose training pictures by a hash of their keys, `count` for every motion.

    A picture is used once. Spins go to pictures that can be seen to spin.
    """
    train = split.records(records, "train")
    train.sort(key=lambda record: hashlib.blake2b(record.key.encode(), digest_size=8).digest())
    remaining = iter(train)
    endless = [name for name, motion in MOTIONS.items() if motion.endless]
    wanted = [name for _ in range(count) for name in MOTIONS]
    wanted_long = [endless[place % len(endless)] for place in range(long_count)]
    clips = _chosen(wanted, remaining)
    return VideoPromptList(
        steps=steps,
        guidance=guidance,
        height=size,
        width=size,
        frames=CLIP_FRAMES,
        rate=CLIP_RATE,
        long_seconds=LONG_SECONDS,
        clips=clips,
        long=_chosen(wanted_long, remaining),
    )


def _chosen(motions: Sequence[str], remaining: Iterator[Record]) -> tuple[VideoPrompt, ...]:
    """A prompt for each of `motions`, of the next picture that can show it."""
    waiting: list[Record] = []
    chosen = []
    for seed, motion in enumerate(motions):
        record = _take(motion, waiting, remaining)
        prompt = motion_prompt(emoji_prompt(record.label, record.style), motion)
        chosen.append(VideoPrompt(prompt, record.key, motion, seed))
    return tuple(chosen)


def _take(motion: str, waiting: list[Record], remaining: Iterator[Record]) -> Record:
    """The first picture that can show `motion`; those passed over wait for another one."""
    for place, record in enumerate(waiting):
        if _shows(record, motion):
            return waiting.pop(place)
    for record in remaining:
        if _shows(record, motion):
            return record
        waiting.append(record)
    raise ValueError(f"there are too few pictures: none is left that {motion}")


def _shows(record: Record, motion: str) -> bool:
    try:
        return bool(visible_motions(record, [motion]))
    except ValueError:
        return False


def load_video_prompts(source: str | Path = "emoji_video_prompts") -> VideoPromptList:
    """Load a committed list by name, or a file by path; raises `ValueError` if it is not one."""
    text = read_split_file(source)
    try:
        content = json.loads(text)
        parts = {
            part: tuple(
                VideoPrompt(str(row[0]), str(row[1]), str(row[2]), int(row[3]))
                for row in content[part]
            )
            for part in ("clips", "long")
        }
        return VideoPromptList(
            steps=int(content["steps"]),
            guidance=float(content["guidance"]),
            height=int(content["height"]),
            width=int(content["width"]),
            frames=int(content["frames"]),
            rate=int(content["rate"]),
            long_seconds=int(content["long_seconds"]),
            **parts,
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{source} is not a list of video prompts: {error!r}") from error
