"""Clips are what their captions say: the poses by formula, the pixels by measurement."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from sana_like_train.data.captions import Caption
from sana_like_train.data.motion import (
    BACKGROUNDS,
    CLIP_RATE,
    CLIP_SECONDS,
    MOTIONS,
    ClipPlan,
    motion_captions,
    motion_prompt,
    plan_clip,
)
from sana_like_train.data.motion_clips import (
    draw_clip,
    motion_clip,
    premultiplied,
    visible_motions,
)
from sana_like_train.data.records import load_records

TIMES = [place / CLIP_RATE for place in range(25)]


def plans(motion, count=50):
    return [plan_clip(f"key {i}", seed=3, motions=[motion]) for i in range(count)]


def way(motion, axis):
    for plan in plans(motion):
        yield np.diff([getattr(plan.pose(time), axis) for time in TIMES]), plan


@pytest.mark.parametrize(
    ("motion", "axis", "sign"),
    [
        ("moves left", "x", -1),
        ("moves right", "x", 1),
        ("moves up", "y", -1),
        ("moves down", "y", 1),
        ("spins clockwise", "turn", 1),
        ("spins counterclockwise", "turn", -1),
        ("grows", "scale", 1),
        ("shrinks", "scale", -1),
    ],
)
def test_every_step_goes_one_way_and_nothing_else_changes(motion, axis, sign):
    for given, plan in way(motion, axis):
        around = np.remainder(given + math.pi, 2 * math.pi) - math.pi
        steps = around if axis == "turn" else given
        assert (sign * steps > 0).all()
        assert np.allclose(steps, steps[0]) or axis == "scale"
        for other in {"x", "y", "scale", "turn"} - {axis}:
            assert len({getattr(plan.pose(time), other) for time in TIMES}) == 1


def test_growth_is_by_equal_factors():
    for steps, plan in way("grows", "scale"):
        assert len(steps) == 24
        scales = [plan.pose(time).scale for time in TIMES]
        assert np.allclose(np.diff(np.log(scales)), np.log(scales[1] / scales[0]))


def test_bounces_go_up_and_come_down_to_the_same_ground():
    for plan in plans("bounces"):
        period = 1 / plan.speed
        assert plan.pose(0).y == pytest.approx(plan.pose(period).y)
        assert plan.pose(period / 2).y == pytest.approx(plan.y - plan.height)
        assert 1.8 <= CLIP_SECONDS * plan.speed <= 3.01


def test_still_means_still():
    for plan in plans("stands still"):
        assert len({plan.pose(time) for time in TIMES}) == 1


@pytest.mark.parametrize("motion", [name for name in MOTIONS if not name.startswith("moves")])
def test_pictures_stay_in_the_frame(motion):
    for plan in plans(motion):
        for time in (*TIMES, 60.0):
            pose = plan.pose(time)
            assert max(abs(pose.x), abs(pose.y)) + pose.scale / 2 <= 0.56


@pytest.mark.parametrize("motion", [name for name in MOTIONS if name.startswith("moves")])
def test_moving_pictures_are_half_in_sight_and_come_back(motion):
    for plan in plans(motion):
        places = [plan.pose(time) for time in TIMES]
        assert max(max(abs(pose.x), abs(pose.y)) for pose in places) < 0.5
        far = [plan.pose(time) for time in np.linspace(0, 60, 400)]
        assert max(max(abs(pose.x), abs(pose.y)) for pose in far) <= 0.5 + plan.scale / 2 + 1e-9


def test_plans_depend_on_seed_epoch_and_key_alone():
    plan = plan_clip("a", seed=1, epoch=2)
    assert plan == plan_clip("a", seed=1, epoch=2)
    others = [plan_clip("b", seed=1, epoch=2), plan_clip("a", seed=2, epoch=2)]
    assert all(plan != other for other in [*others, plan_clip("a", seed=1, epoch=3)])
    assert set(MOTIONS) == {plan_clip(f"{i}", seed=0).motion for i in range(300)}
    assert set(BACKGROUNDS) == {plan_clip(f"{i}", seed=0).background for i in range(300)}


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="moves left, moves right"):
        plan_clip("a", seed=0, motions=["flies"])
    with pytest.raises(ValueError, match="sky blue"):
        plan_clip("a", seed=0, background="mauve")


def test_captions_say_the_motion_and_the_background():
    plan = replace(plan_clip("a", seed=0, motions=["bounces"]), background="orange")
    captions = motion_captions((Caption("red apple, 3d", 0.5), Caption("apple", 0.1)), plan)
    assert captions[0].text == "red apple, 3d, bounces, on an orange background"
    assert sum(one.weight for one in captions) == pytest.approx(0.6)
    assert all("orange background" in one.text for one in captions)
    assert any("bouncing up and down" in one.text for one in captions)
    white = motion_captions((Caption("red apple, 3d"),), replace(plan, background="white"))
    assert white[0].text == motion_prompt("red apple, 3d", "bounces") == "red apple, 3d, bounces"
    assert sum(one.weight for one in white) == pytest.approx(1)
    assert any(one.text.endswith("on a white background") for one in white)


def arrow(side=128):
    """A thick arrow upwards, red, with one blue corner, so that no turn leaves it the same."""
    image = Image.new("RGBA", (side, side))
    draw = ImageDraw.Draw(image)
    draw.polygon(
        [(64, 4), (124, 64), (84, 64), (84, 124), (44, 124), (44, 64), (4, 64)], (220, 30, 30, 255)
    )
    draw.rectangle((44, 104, 84, 124), (20, 20, 220, 255))
    return image


def drawn(plan, **options):
    return draw_clip(premultiplied(arrow()), plan, side=96, **options)


def still(**changes):
    return replace(ClipPlan("stands still", "green", 0.0, 0.0, 1.0), **changes)


def test_pixels_are_where_the_pose_says():
    frame = drawn(still(), frames=1)[0].float()
    green = torch.tensor(BACKGROUNDS["green"]).view(3, 1, 1) * 255
    assert (frame[:, 0, 0] - green[:, 0, 0]).abs().max() < 1
    half = drawn(still(scale=0.5, x=0.25, y=-0.25), frames=1)[0].float()
    assert (half[:, 48:] - green).abs().max() < 1.1  # nothing in the lower half
    assert (half[:, :, :47] - green).abs().max() < 1.1  # nor in the left half
    small = torch.nn.functional.interpolate(frame[None], scale_factor=0.5, mode="area")[0]
    assert (half[:, :48, 48:] - small).abs().mean() < 4


def test_clockwise_on_the_screen():
    plan = ClipPlan("spins clockwise", "white", 0.0, 0.0, 0.7, speed=0.25)
    quarter = drawn(plan, frames=9, rate=8)[8].numpy()
    upright = drawn(replace(plan, motion="stands still"), frames=1)[0].numpy()
    turned = np.rot90(upright, -1, (1, 2))
    assert np.abs(quarter.astype(int) - turned).mean() < 1.5


def test_any_rate_and_any_part_of_a_clip_are_the_same_motion():
    plan = plan_clip("a", seed=5, motions=["moves up"])
    whole = drawn(plan, frames=25)
    assert torch.equal(drawn(plan, frames=5, first=20), whole[20:])
    assert torch.equal(drawn(plan, frames=49, rate=16)[::2], whole)
    with pytest.raises(ValueError, match="above 0"):
        drawn(plan, frames=0)


def test_clip_of_a_record(emoji_pack):
    record = load_records(emoji_pack(count=1))[0]
    clip = motion_clip(record, seed=1, side=64)
    assert clip.frames.shape == (25, 3, 64, 64) and clip.frames.dtype == torch.uint8
    assert torch.equal(clip.frames, motion_clip(record, seed=1, side=64).frames)
    assert clip.captions[0].text.startswith(f"{record.captions[0].text}, {clip.plan.motion}")


def test_a_disc_is_not_said_to_spin(emoji_pack):
    record = load_records(emoji_pack(count=1))[0]
    assert not any(name.startswith("spins") for name in visible_motions(record, list(MOTIONS)))
    with pytest.raises(ValueError, match="the same while it spins"):
        motion_clip(record, seed=0, motions=["spins clockwise"])
