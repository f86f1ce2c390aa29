"""What a run on clips learns from: drawn motions of pictures, real clips, and pictures alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sana_like_train.data.buckets import fit_to_bucket
from sana_like_train.data.captions import Caption
from sana_like_train.data.clips import animated_captions, open_clip
from sana_like_train.data.motion import MOTIONS, ClipPlan, motion_captions, plan_clip
from sana_like_train.data.motion_clips import draw_clip, premultiplied, visible_motions
from sana_like_train.data.records import Record


@dataclass(frozen=True, slots=True)
class ClipItem:
    """One clip, or picture, of any length and size, opened when it is wanted.

    Attributes:
        key: name that is unique in a run.
        record: the picture or clip it is made of.
        captions: wordings with weights, the main one first.
        plan: the motion of a drawn clip.
        still: whether it is a picture alone.
    """

    key: str
    record: Record
    captions: tuple[Caption, ...]
    plan: ClipPlan | None = None
    still: bool = False

    @property
    def identity(self) -> str:
        """All that its frames depend on, besides their number, rate and size."""
        span = self.record.picture
        return f"{span.path}:{span.offset}:{span.size}:{self.plan}:{self.still}"

    def open(self, frames: int, rate: float, side: int, first: int = 0) -> Tensor:
        """Frames `first` to `first + frames` as uint8 `[frames, 3, side, side]`.

        A real clip that ends too soon goes on from its start.

        Raises:
            ValueError: unreadable; names the record.
        """
        if self.still:
            picture = fit_to_bucket(self.record.open_picture(None), (side, side))
            frame = ((picture + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
            return frame[None].expand(frames, -1, -1, -1)
        if self.plan is not None:
            picture = premultiplied(self.record.open_image())
            return draw_clip(picture, self.plan, frames=frames, rate=rate, side=side, first=first)
        clip = open_clip(
            self.record, frames=first + frames, rate=rate, size=(side, side), loop=True
        )
        return clip[first:]


def drawn_item(
    record: Record, *, seed: int, epoch: int, motions: Sequence[str] | None = None
) -> ClipItem:
    """A clip of exact motion of a picture, drawn as a function of `(seed, epoch, key)`.

    Args:
        record: of the picture.
        seed, epoch: of the run.
        motions: choose among these; none is all.

    Raises:
        ValueError: an unknown motion, or none that can be seen of this picture.
    """
    names = visible_motions(record, list(MOTIONS) if motions is None else list(motions))
    plan = plan_clip(record.key, seed=seed, epoch=epoch, motions=names)
    captions = motion_captions(record.captions, plan)
    return ClipItem(f"{record.key}:{plan.motion}:{epoch}", record, captions, plan)


def real_item(record: Record) -> ClipItem:
    """A clip of a pack or folder; clips of an emoji pack say that they are animated."""
    captions = animated_captions(record.captions) if record.style else record.captions
    return ClipItem(f"{record.key}:clip", record, captions)


def still_item(record: Record) -> ClipItem:
    """A picture as a clip of one frame."""
    return ClipItem(record.key, record, record.captions, still=True)


def some_captions(captions: Sequence[Caption], count: int, key: str) -> tuple[Caption, ...]:
    """At most `count` captions: the main one, and others by their weight as a function of `key`.

    Every wording of every clip would be too many texts to encode.
    """
    if len(captions) <= count:
        return tuple(captions)
    rng = random.Random(hashlib.blake2b(key.encode(), digest_size=8).digest())
    # The largest of u^(1/w) are a draw without replacement by weight (Efraimidis and Spirakis).
    rest = sorted(captions[1:], key=lambda one: rng.random() ** (1 / one.weight), reverse=True)
    return (captions[0], *rest[: count - 1])
