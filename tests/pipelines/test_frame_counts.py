"""Any count of frames is delivered: worked on at the next legal one, or refused by name."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sana_like_pipelines.frames import latent_span, plan_frames

COUNTS = [1, 2, 16, 33, 80, 81, 82, 161]


@pytest.mark.parametrize("factor", [4, 8])
@pytest.mark.parametrize("frames", COUNTS)
def test_next_legal_count(frames, factor):
    plan = plan_frames(frames, factor)
    assert plan.work_frames % factor == 1
    assert frames <= plan.work_frames < frames + factor
    assert latent_span(plan.latent_frames, factor) == plan.work_frames
    clip = torch.arange(plan.work_frames)
    assert plan.deliver(clip).tolist() == list(range(frames))
    assert plan.exact == (frames % factor == 1)


@given(st.integers(1, 10**9), st.integers(1, 16))
def test_least_legal_count(frames, factor):
    plan = plan_frames(frames, factor)
    assert plan.work_frames == 1 + factor * math.ceil((frames - 1) / factor)


def test_one_frame_is_a_picture():
    assert (plan_frames(1, 4).work_frames, plan_frames(1, 4).latent_frames) == (1, 1)


@pytest.mark.parametrize("frames", [0, -4, 2.0, "16", None, True, float("nan")])
def test_what_is_no_count(frames):
    with pytest.raises(ValueError, match="nearest legal counts: 1 and 5"):
        plan_frames(frames, 4)


def test_exact_refuses_and_names_the_nearest():
    assert plan_frames(81, 4, exact=True).work_frames == 81
    with pytest.raises(ValueError, match=r"82.*81 \(5\.062 s\) and 85 \(5\.312 s\)"):
        plan_frames(82, 4, exact=True, rate=16)
    with pytest.raises(ValueError, match=r"81 \(3\.378 s\) and 89 \(3\.712 s\)"):
        plan_frames(82, 8, exact=True, rate=Fraction(24000, 1001))


def test_latent_span_needs_a_frame():
    with pytest.raises(ValueError, match="1 or more"):
        latent_span(0, 4)
