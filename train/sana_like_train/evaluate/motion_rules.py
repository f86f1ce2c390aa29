"""Which motion a clip shows, by fixed rules on its optical flow. They were set before training.

Each rule looks at one number of `ClipMotion`: direction for moves, curl for spins, divergence for
growing and shrinking, the alternating sign of the way down for bounces, and the size of all of them
for standing still. Of several, the one that moves the picture's pixels furthest wins; growth counts
double, since a picture that does not lie in the middle of its growth also moves by it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from sana_like_train.evaluate.flow import ClipMotion, clip_motion

# Least mean way of a pixel between two frames, in sides of the frame: 0.4 pixels of 256.
STILL = 0.0016
# A bounce goes up and down at least so often, each at this least mean speed.
LEAST_RUNS = 3
BOUNCE_SPEED = 0.006
# Of a bounce's way, the share that is left when ups and downs are added.
BOUNCE_DRIFT = 0.6
GROWTH_WEIGHT = 2.0
# What goes nowhere on the whole stands still if its steps are no longer than this, else it wobbles.
WOBBLE = 0.005
WOBBLES = "wobbles"


@dataclass(frozen=True)
class MotionStrengths:
    """How far each kind of motion carries the picture's pixels from frame to frame, in sides.

    Means over the steps, with their sign: `right`, `down`, `clockwise`, `growth`. `bouncing` is the
    mean way up or down without its sign, `runs` how often its direction lasts before it turns, and
    `speed` the mean way of a pixel by all motions together, without sign.
    """

    right: float
    down: float
    clockwise: float
    growth: float
    bouncing: float
    runs: int
    speed: float

    def as_dict(self) -> dict[str, float]:
        """Rounded values, for a report."""
        return {name: round(value, 5) for name, value in asdict(self).items()}


def recognise_motion(frames: np.ndarray) -> str:
    """The motion that a clip shows: one of `sana_like_train.data.motion.MOTIONS`, or `WOBBLES`.

    Args:
        frames: uint8 `[F, Y, X, 3]`, at least two.
    """
    return name_motion(motion_strengths(clip_motion(frames)))


def motion_strengths(motion: ClipMotion) -> MotionStrengths:
    """Sum up the steps of a clip."""
    return MotionStrengths(
        right=float(_middle_mean(motion.right)),
        down=float(_middle_mean(motion.down)),
        clockwise=float(_middle_mean(motion.turn * motion.radius)),
        growth=float(_middle_mean(motion.growth * motion.radius)),
        bouncing=float(np.abs(motion.down).mean()),
        runs=_runs(motion.down),
        speed=float(
            np.sqrt(
                motion.right**2
                + motion.down**2
                + (motion.radius * motion.turn) ** 2
                + (motion.radius * motion.growth) ** 2
            ).mean()
        ),
    )


def name_motion(strengths: MotionStrengths) -> str:
    """Apply the rules."""
    s = strengths
    drift = abs(s.down) <= BOUNCE_DRIFT * s.bouncing
    if s.bouncing >= BOUNCE_SPEED and s.runs >= LEAST_RUNS and drift:
        rivals = max(abs(s.right), abs(s.clockwise), abs(s.growth))
        if rivals < s.bouncing:
            return "bounces"
    rules = {
        ("moves right", "moves left"): s.right,
        ("moves down", "moves up"): s.down,
        ("spins clockwise", "spins counterclockwise"): s.clockwise,
        ("grows", "shrinks"): GROWTH_WEIGHT * s.growth,
    }
    names, strength = max(rules.items(), key=lambda rule: abs(rule[1]))
    if abs(strength) < STILL:
        return "stands still" if s.speed <= WOBBLE else WOBBLES
    return names[0] if strength > 0 else names[1]


def _middle_mean(values: np.ndarray) -> np.ndarray:
    """Mean without the largest and the smallest tenth: a jump between two frames is no motion."""
    ordered = np.sort(values)
    cut = len(ordered) // 10
    return ordered[cut : len(ordered) - cut].mean()


def _runs(down: np.ndarray) -> int:
    """How often the picture goes on in one direction, up or down, for some way."""
    count, way, sign = 0, 0.0, 0.0
    for step in down:
        if np.sign(step) != sign:
            way, sign = 0.0, float(np.sign(step))
        before, way = way, way + abs(float(step))
        count += before < 4 * BOUNCE_SPEED <= way
    return count
