"""Cutting pictures out of frames, and finding dead stretches of long videos."""

import numpy as np
import pytest

from sana_like_train.evaluate.concept import cut_out
from sana_like_train.evaluate.long_video import Stretches, find_stretches

RNG = np.random.default_rng(0)


def frame_with_square(top, left, side=12):
    frame = np.full((64, 64, 3), 200, np.uint8)
    frame[top : top + side, left : left + side] = RNG.integers(0, 100, 3)
    return frame


@pytest.mark.parametrize("place", [(20, 30), (0, 0), (52, 52), (0, 52)])
def test_the_square_around_the_picture(place):
    square = cut_out(frame_with_square(*place))
    assert square.shape[0] == square.shape[1] and 12 < square.shape[0] <= 14
    bright = (square != 200).any(axis=-1)
    assert bright.sum() == 144
    rows = np.nonzero(bright.any(1))[0]
    assert abs(rows.mean() - (square.shape[0] - 1) / 2) <= 1


def test_an_empty_frame_stays_as_it_is():
    frame = np.full((32, 32, 3), 255, np.uint8)
    assert np.array_equal(cut_out(frame), frame)


def busy(count):
    return [frame_with_square(20, 4 + place) for place in range(count)]


def test_stretches():
    still = busy(1) * 10
    black, white = np.zeros((64, 64, 3), np.uint8), np.full((64, 64, 3), 255, np.uint8)
    found = find_stretches([*busy(8), *still, *[black] * 16, *busy(4), *[white] * 12], rate=8)
    assert found == Stretches(black=2.0, white=1.5, flat=2.0, frozen=15 / 8)
    assert found.dead()
    assert not find_stretches(busy(20), 8).dead()
    assert find_stretches(still, 8).dead() and not find_stretches(still, 8).dead(
        may_stand_still=True
    )
