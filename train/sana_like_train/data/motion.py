"""Exact motions of one picture over a plain background, and the words for them.

Every motion is a function of time in seconds, so a clip may have any rate and any number of frames,
and its caption is true by construction. Lengths are in sides of the frame, angles in turns.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sana_like_train.data.captions import Caption
from sana_like_train.data.records import Colour

CLIP_FRAMES = 25
CLIP_RATE = 8  # frames per second
CLIP_SECONDS = (CLIP_FRAMES - 1) / CLIP_RATE

BACKGROUNDS: Mapping[str, Colour] = {
    "white": (1.0, 1.0, 1.0),
    "black": (0.06, 0.06, 0.07),
    "grey": (0.60, 0.61, 0.62),
    "red": (0.82, 0.20, 0.20),
    "orange": (0.97, 0.58, 0.20),
    "yellow": (0.99, 0.89, 0.35),
    "green": (0.25, 0.66, 0.34),
    "blue": (0.20, 0.42, 0.85),
    "sky blue": (0.60, 0.82, 0.97),
    "purple": (0.52, 0.30, 0.74),
    "pink": (0.98, 0.69, 0.80),
    "brown": (0.50, 0.34, 0.23),
}
PLAIN_BACKGROUND = "white"
PLAIN_SHARE = 0.4

# Weights of the forms of a clip's caption, as in `captions`.
_SYNONYM_WEIGHT = 0.15
_NAMED_PLAIN_WEIGHT = 0.15

_FULL_TURN = 2 * math.pi
# What may leave the frame at the most extreme place, in sides.
_OVERHANG = 0.02


@dataclass(frozen=True, slots=True)
class Pose:
    """Where the picture is: centre right and down of the middle, side, and turn clockwise (rad)."""

    x: float
    y: float
    scale: float
    turn: float = 0.0


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """All that a clip is made by, besides its picture.

    Attributes:
        motion: one of `MOTIONS`.
        background: one of `BACKGROUNDS`.
        x, y: centre of the picture in frame 0, from the middle, in sides.
        scale: side of the picture in frame 0, in sides.
        speed: sides, turns, bounces, or doublings a second.
        height: of a bounce, in sides.
    """

    motion: str
    background: str
    x: float
    y: float
    scale: float
    speed: float = 0.0
    height: float = 0.0

    def pose(self, seconds: float) -> Pose:
        """Where the picture is after `seconds`."""
        return MOTIONS[self.motion].pose(self, seconds)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a report."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Motion:
    """A kind of motion: how it runs, how its numbers are drawn, and other words for it."""

    pose: Callable[[ClipPlan, float], Pose]
    draw: Callable[[random.Random], dict[str, float]]
    synonyms: tuple[str, ...]
    endless: bool = True
    """Whether it goes on, with the picture in sight, for any time."""


def plan_clip(
    key: str,
    *,
    seed: int,
    epoch: int = 0,
    motions: Sequence[str] | None = None,
    background: str | None = None,
) -> ClipPlan:
    """Draw a plan as a function of `(seed, epoch, key)` alone.

    Args:
        key: of the picture's record.
        seed, epoch: of the run.
        motions: choose among these; None is all.
        background: this one; None draws, white more often than the others.

    Raises:
        ValueError: an unknown motion or background, or no motion.
    """
    names = list(MOTIONS) if motions is None else list(motions)
    unknown = [name for name in names if name not in MOTIONS]
    if unknown or not names:
        raise ValueError(f"motions {unknown or names} are unknown; legal: {', '.join(MOTIONS)}")
    if background is not None and background not in BACKGROUNDS:
        raise ValueError(f"background {background!r} is unknown; legal: {', '.join(BACKGROUNDS)}")
    text = f"{seed}:{epoch}:{key}".encode()
    rng = random.Random(hashlib.blake2b(text, digest_size=8).digest())
    motion = rng.choice(names)
    others = [name for name in BACKGROUNDS if name != PLAIN_BACKGROUND]
    drawn = PLAIN_BACKGROUND if rng.random() < PLAIN_SHARE else rng.choice(others)
    return ClipPlan(motion, background or drawn, **MOTIONS[motion].draw(rng))


def motion_prompt(prompt: str, motion: str, background: str = PLAIN_BACKGROUND) -> str:
    """The main wording of a clip, `LABEL, STYLE, MOTION`; a background that is not white is named.

    `motion_prompt("red apple, 3d", "bounces", "blue")` is
    `"red apple, 3d, bounces, on a blue background"`.
    """
    named = "" if background == PLAIN_BACKGROUND else f", {_on(background)}"
    return f"{prompt}, {motion}{named}"


def motion_captions(captions: Sequence[Caption], plan: ClipPlan) -> tuple[Caption, ...]:
    """The captions of a picture as those of its clip; the first is the main one.

    Each wording of the picture is joined with the motion's plain name; some weight goes to other
    words for the motion and to naming a white background.
    """
    synonyms = MOTIONS[plan.motion].synonyms
    plain = plan.background == PLAIN_BACKGROUND
    main = 1.0 - (_SYNONYM_WEIGHT if synonyms else 0.0) - (_NAMED_PLAIN_WEIGHT if plain else 0.0)
    found: list[Caption] = []
    for caption in captions:
        text, weight = caption.text, caption.weight
        named = motion_prompt(text, plan.motion, plan.background)
        found.append(Caption(named, weight * main))
        for words in synonyms:
            other = motion_prompt(text, words, plan.background)
            found.append(Caption(other, weight * _SYNONYM_WEIGHT / len(synonyms)))
        if plain:
            told = f"{named}, {_on(plan.background)}"
            found.append(Caption(told, weight * _NAMED_PLAIN_WEIGHT))
    return tuple(found)


def _on(background: str) -> str:
    return f"on {'an' if background[0] in 'aeiou' else 'a'} {background} background"


def _moves(right: int, down: int) -> Motion:
    """A straight way at constant speed; what leaves the frame comes back on the other side."""

    def pose(plan: ClipPlan, seconds: float) -> Pose:
        way = plan.speed * seconds
        x, y = plan.x + right * way, plan.y + down * way
        return Pose(_wrapped(x, plan.scale), _wrapped(y, plan.scale), plan.scale)

    def draw(rng: random.Random) -> dict[str, float]:
        scale = rng.uniform(0.45, 0.75)
        room = 0.5 - scale / 2 + _OVERHANG
        travel = min(rng.uniform(0.25, 0.45), 2 * room)
        # Half of the clips cross the middle, half begin in it and go on as far as there is room.
        start = travel / 2 if rng.random() < 0.5 else 0.0
        travel = travel if start else max(min(travel, room + 0.08), 0.2)
        aside = rng.uniform(-1.0, 1.0) * min(0.12, room)
        x, y = (-right * start, aside) if right else (aside, -down * start)
        return {"x": x, "y": y, "scale": scale, "speed": travel / CLIP_SECONDS}

    words = {(-1, 0): "left", (1, 0): "right", (0, -1): "up", (0, 1): "down"}[right, down]
    synonym = f"moving to the {words}" if right else f"moving {words}"
    return Motion(pose, draw, (synonym,), endless=False)


def _wrapped(place: float, scale: float) -> float:
    """A centre that has left the frame, as it comes in from the other side."""
    reach = 0.5 + scale / 2
    return place if abs(place) <= reach else (place + reach) % (2 * reach) - reach


def _spins(clockwise: int) -> Motion:
    def pose(plan: ClipPlan, seconds: float) -> Pose:
        turn = clockwise * _FULL_TURN * plan.speed * seconds
        return Pose(plan.x, plan.y, plan.scale, math.remainder(turn, _FULL_TURN))

    def draw(rng: random.Random) -> dict[str, float]:
        scale = rng.uniform(0.55, 0.72)
        place = {"x": rng.uniform(-0.06, 0.06), "y": rng.uniform(-0.06, 0.06)}
        return {**place, "scale": scale, "speed": rng.uniform(1 / 6, 1 / 3)}

    way = "clockwise" if clockwise > 0 else "counterclockwise"
    return Motion(pose, draw, (f"rotating {way}", f"turning {way}"))


def _bounces() -> Motion:
    def pose(plan: ClipPlan, seconds: float) -> Pose:
        part = (plan.speed * seconds) % 1.0
        return Pose(plan.x, plan.y - 4 * plan.height * part * (1 - part), plan.scale)

    def draw(rng: random.Random) -> dict[str, float]:
        scale = rng.uniform(0.42, 0.6)
        ground = 0.5 - scale / 2 - rng.uniform(0.0, 0.04)
        height = min(rng.uniform(0.22, 0.36), ground + 0.5 - scale / 2 + _OVERHANG)
        return {
            "x": rng.uniform(-0.1, 0.1),
            "y": ground,
            "scale": scale,
            "speed": rng.uniform(0.6, 1.0),
            "height": height,
        }

    return Motion(pose, draw, ("bouncing up and down",))


def _scales(sign: int) -> Motion:
    """Grows or shrinks by equal factors in equal times, then stays at its last size."""
    smallest, largest = 0.2, 0.92

    def pose(plan: ClipPlan, seconds: float) -> Pose:
        scale = plan.scale * 2 ** (sign * plan.speed * seconds)
        return Pose(plan.x, plan.y, min(max(scale, smallest), largest))

    def draw(rng: random.Random) -> dict[str, float]:
        small, ratio = rng.uniform(0.36, 0.46), rng.uniform(1.5, 1.9)
        return {
            "x": rng.uniform(-0.05, 0.05),
            "y": rng.uniform(-0.05, 0.05),
            "scale": small if sign > 0 else small * ratio,
            "speed": math.log2(ratio) / CLIP_SECONDS,
        }

    synonyms = ("growing bigger", "getting larger") if sign > 0 else ("getting smaller",)
    return Motion(pose, draw, synonyms, endless=False)


def _still() -> Motion:
    def pose(plan: ClipPlan, seconds: float) -> Pose:  # noqa: ARG001 - the same at any time
        return Pose(plan.x, plan.y, plan.scale)

    def draw(rng: random.Random) -> dict[str, float]:
        scale = rng.uniform(0.5, 0.92)
        room = (1 - scale) / 2
        return {"x": rng.uniform(-room, room), "y": rng.uniform(-room, room), "scale": scale}

    return Motion(pose, draw, ("standing still", "not moving"))


MOTIONS: Mapping[str, Motion] = {
    "moves left": _moves(-1, 0),
    "moves right": _moves(1, 0),
    "moves up": _moves(0, -1),
    "moves down": _moves(0, 1),
    "spins clockwise": _spins(1),
    "spins counterclockwise": _spins(-1),
    "bounces": _bounces(),
    "grows": _scales(1),
    "shrinks": _scales(-1),
    "stands still": _still(),
}
