"""The fixed rules name the motions of drawn clips, and nothing else."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

pytest.importorskip("cv2")

from sana_like_train.data.motion import BACKGROUNDS, MOTIONS, plan_clip
from sana_like_train.data.motion_clips import draw_clip, premultiplied
from sana_like_train.evaluate.flow import background_colour, clip_motion, stands_out
from sana_like_train.evaluate.motion_rules import WOBBLES, motion_strengths, recognise_motion

SIDE = 128


def picture(number):
    """One of several figures with some texture, none of them round."""
    rng = np.random.default_rng(number)
    image = Image.new("RGBA", (SIDE, SIDE))
    draw = ImageDraw.Draw(image)
    corners = [(64 + 60 * np.cos(t), 64 + 60 * np.sin(t)) for t in np.sort(rng.uniform(0, 6.28, 7))]
    draw.polygon(corners, (*rng.integers(30, 225, 3).tolist(), 255))
    for _ in range(12):
        x, y = rng.uniform(25, 95, 2)
        draw.ellipse((x, y, x + 14, y + 10), (*rng.integers(0, 255, 3).tolist(), 255))
    return premultiplied(image)


def clip(motion, number, background="white"):
    plan = plan_clip(f"{number}", seed=0, motions=[motion], background=background)
    return draw_clip(picture(number), plan, side=SIDE).movedim(1, -1).numpy()


def test_drawn_clips_are_named_rightly():
    backgrounds = list(BACKGROUNDS)
    named = [
        (motion, recognise_motion(clip(motion, number, backgrounds[number % len(backgrounds)])))
        for number in range(4)
        for motion in MOTIONS
    ]
    wrong = [pair for pair in named if pair[0] != pair[1]]
    assert len(wrong) <= 0.05 * len(named), wrong


@pytest.mark.parametrize(
    ("motion", "backwards"),
    [
        ("moves left", "moves right"),
        ("moves up", "moves down"),
        ("spins clockwise", "spins counterclockwise"),
        ("grows", "shrinks"),
        ("bounces", "bounces"),
        ("stands still", "stands still"),
    ],
)
def test_a_clip_backwards_shows_the_opposite(motion, backwards):
    assert recognise_motion(clip(motion, 1)[::-1].copy()) == backwards


def test_noise_and_wobble_are_no_motion():
    still = clip("stands still", 2)
    noisy = np.clip(still + np.random.default_rng(0).normal(0, 2, still.shape), 0, 255)
    assert recognise_motion(noisy.astype(np.uint8)) == "stands still"
    shaken = np.stack([np.roll(still[0], 3 * (-1) ** place, 1) for place in range(25)])
    assert recognise_motion(shaken) == WOBBLES


def test_numbers_are_those_of_the_motion():
    motion = clip_motion(
        np.stack([np.roll(clip("stands still", 3)[0], (2 * i, i), (0, 1)) for i in range(6)])
    )
    assert np.allclose(motion.right, 1 / SIDE, atol=0.1 / SIDE)
    assert np.allclose(motion.down, 2 / SIDE, atol=0.1 / SIDE)
    plan = plan_clip("a", seed=0, motions=["spins clockwise"])
    turned = clip_motion(draw_clip(picture(3), plan, side=SIDE).movedim(1, -1).numpy())
    assert np.median(turned.turn) == pytest.approx(2 * np.pi * plan.speed / 8, rel=0.35)
    strengths = motion_strengths(turned)
    assert strengths.clockwise > 5 * max(abs(strengths.growth), abs(strengths.right))


def test_background_is_found_behind_the_picture():
    frames = clip("grows", 4, "blue")
    behind = background_colour(frames)
    assert np.abs(behind / 255 - BACKGROUNDS["blue"]).max() < 0.01
    assert 0.02 < stands_out(frames[0], behind).mean() < 0.3


def test_empty_clips_and_wrong_shapes():
    assert recognise_motion(np.zeros((5, 32, 32, 3), np.uint8)) == "stands still"
    for frames in (
        np.zeros((1, 8, 8, 3), np.uint8),
        np.zeros((5, 8, 8, 3)),
        np.zeros((5, 8, 8), np.uint8),
    ):
        with pytest.raises(ValueError, match="no flow"):
            clip_motion(frames)
