"""The pure functions: levels, conversions, and the local order of every update."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sana_like.schedulers import flow

SHIFT_ONCE = {
    (3.0, 4): [0.999666, 0.899640, 0.749625, 0.499667, 0],
    (8.0, 5): [0.999875, 0.969550, 0.922899, 0.841883, 0.666389, 0],
    (1.0, 4): [0.999, 0.74925, 0.4995, 0.24975, 0],
}


@pytest.mark.parametrize(("setting", "expected"), SHIFT_ONCE.items())
def test_default_levels_are_shifted_once(setting, expected):
    shift, steps = setting
    np.testing.assert_allclose(flow.make_sigmas(steps, shift=shift), expected, atol=6e-7)


def test_full_table_falls_strictly_and_is_shifted_once():
    table = flow.make_sigmas(1000, shift=3.0)
    assert len(table) == 1001 and np.all(np.diff(table) < 0) and table[-1] == 0
    base = flow.unshift_sigma(table, 3.0)
    np.testing.assert_allclose(base, 0.999 * np.arange(1000, -1, -1) / 1000, atol=1e-12)


@pytest.mark.parametrize("grid", ["dpm", "euler", "nvlabs", "euler_shifted_twice"])
@pytest.mark.parametrize("steps", [*range(1, 51), 1000])
def test_every_grid_falls_strictly_to_zero(grid, steps):
    sigmas = flow.make_sigmas(steps, shift=3.0, grid=grid)
    assert len(sigmas) == steps + 1 and 0 < sigmas[0] <= 1 and sigmas[-1] == 0
    assert np.all(np.diff(sigmas) < 0)


def test_grids_before_the_shift():
    np.testing.assert_allclose(
        flow.make_sigmas(4, shift=1, grid="euler"), [1, 0.667, 0.334, 0.001, 0]
    )
    np.testing.assert_allclose(
        flow.make_sigmas(4, shift=1, grid="nvlabs"), [1, 0.75025, 0.5005, 0.25075, 0]
    )


def test_shift_8_gives_the_published_streaming_timesteps():
    s = np.array([1, 0.75, 0.5, 0.25])
    assert np.round(1000 * flow.shift_sigma(s, 8.0)).tolist() == [1000, 960, 889, 727]


@given(st.floats(0, 1), st.floats(0.05, 20))
def test_shift_keeps_the_ends_and_inverts(sigma, shift):
    moved = flow.shift_sigma(sigma, shift)
    assert 0 <= moved <= 1
    assert flow.unshift_sigma(moved, shift) == pytest.approx(sigma, abs=1e-9)
    assert (flow.shift_sigma(0.0, shift), flow.shift_sigma(1.0, shift)) == (0, pytest.approx(1))


def test_bad_settings_are_refused_with_the_legal_range():
    for steps in (0, -1, 1001, 2.0, True, "4", None):
        with pytest.raises(ValueError, match="from 1 to 1000"):
            flow.make_sigmas(steps, shift=3.0)
    for shift in (0, -1.0, math.inf, math.nan, True, "3"):
        with pytest.raises(ValueError, match="shift"):
            flow.make_sigmas(4, shift=shift)
    with pytest.raises(ValueError, match="sigma_grid 'karras'"):
        flow.make_sigmas(4, shift=3.0, grid="karras")


@pytest.mark.parametrize(
    ("strength", "steps", "expected"),
    [(1.0, 20, 0), (0.6, 20, 8), (0.55, 20, 9), (0.5, 1, 0), (0.6, 2, 1), (0.01, 20, 19)],
)
def test_start_index(strength, steps, expected):
    assert flow.start_index(strength, steps) == expected


@pytest.mark.parametrize("strength", [0, -0.1, 1.01, math.nan])
def test_start_index_refuses_other_strengths(strength):
    with pytest.raises(ValueError, match="strength"):
        flow.start_index(strength, 20)


def test_conversions_invert_each_other():
    rng = torch.Generator().manual_seed(0)
    x0, noise = torch.randn(2, 3, 5, generator=rng, dtype=torch.float64).unbind(0)
    x, velocity = flow.add_noise(x0, noise, 0.3), noise - x0
    torch.testing.assert_close(flow.velocity_to_x0(x, velocity, 0.3), x0)
    torch.testing.assert_close(flow.velocity_to_noise(x, velocity, 0.3), noise)
    torch.testing.assert_close(flow.x0_to_velocity(x, x0, 0.3), velocity)


def test_half_log_snr():
    assert flow.half_log_snr(0.5) == 0
    assert flow.half_log_snr(0.2) == pytest.approx(math.log(4))
    assert (flow.half_log_snr(1.0), flow.half_log_snr(0.0)) == (-math.inf, math.inf)


class GaussianField:
    """Data N(mean, spread^2): the exact prediction and the exact path of the flow are known."""

    mean, spread = 0.7, 0.4

    def deviation(self, sigma):
        return math.hypot((1 - sigma) * self.spread, sigma)

    def state(self, sigma, z=1.3):
        return torch.tensor(
            (1 - sigma) * self.mean + self.deviation(sigma) * z, dtype=torch.float64
        )

    def x0(self, x, sigma):
        gain = (1 - sigma) * self.spread**2 / self.deviation(sigma) ** 2
        return self.mean + gain * (x - (1 - sigma) * self.mean)

    def velocity(self, x, sigma):
        return flow.x0_to_velocity(x, self.x0(x, sigma), sigma)


def sigma_at(lam):
    return 1 / (1 + math.exp(lam))


def local_error(update, step):
    """Error of one update that ends at a fixed lambda, with exact history."""
    field = GaussianField()
    sigmas = [sigma_at(0.3 - step * k) for k in (3, 2.2, 1, 0)]  # unequal steps
    exact = [field.state(sigma) for sigma in sigmas]
    x0 = [field.x0(x, sigma) for x, sigma in zip(exact, sigmas, strict=True)]
    return abs(float(update(field, exact, x0, sigmas) - exact[-1]))


UPDATES = {
    "euler": (2, lambda f, x, x0, s: flow.euler_update(x[2], f.velocity(x[2], s[2]), s[2], s[3])),
    "heun": (
        3,
        lambda f, x, x0, s: flow.heun_update(
            x[2],
            f.velocity(x[2], s[2]),
            f.velocity(flow.euler_update(x[2], f.velocity(x[2], s[2]), s[2], s[3]), s[3]),
            s[2],
            s[3],
        ),
    ),
    "dpm1": (2, lambda f, x, x0, s: flow.dpm_first_order_update(x[2], x0[2], s[2], s[3])),
    "dpm2": (3, lambda f, x, x0, s: flow.dpm_second_order_update(x[2], x0[1:3], s[1:])),
    "dpm2_heun": (
        3,
        lambda f, x, x0, s: flow.dpm_second_order_update(x[2], x0[1:3], s[1:], "heun"),
    ),
    "dpm3": (4, lambda f, x, x0, s: flow.dpm_third_order_update(x[2], x0[:3], s)),
}


@pytest.mark.parametrize("name", UPDATES)
def test_local_error_has_the_order_of_the_update(name):
    order, update = UPDATES[name]
    steps = [0.05, 0.025, 0.0125, 0.00625]
    errors = [local_error(update, step) for step in steps]
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert slope == pytest.approx(order, abs=0.15)


def test_updates_start_at_pure_noise_and_end_at_the_clean_sample():
    x, x0 = torch.tensor([2.0]), torch.tensor([-1.0])
    assert flow.dpm_first_order_update(x, x0, 1.0, 0.0).equal(x0)
    half = flow.dpm_first_order_update(x, x0, 1.0, 0.5)
    torch.testing.assert_close(half, torch.tensor([0.5]))
    # lambda is -inf at level 1: the higher orders fall back on the lower one, without nan
    second = flow.dpm_second_order_update(half, [x, x0], [1.0, 0.5, 0.25])
    torch.testing.assert_close(second, flow.dpm_first_order_update(half, x0, 0.5, 0.25))
    third = flow.dpm_third_order_update(half, [x, x, x0], [1.0, 0.7, 0.5, 0.25])
    torch.testing.assert_close(
        third, flow.dpm_second_order_update(half, [x, x0], [0.7, 0.5, 0.25], "heun")
    )
    with pytest.raises(ValueError, match="sigma 0"):
        flow.dpm_second_order_update(half, [x, x0], [1.0, 0.5, 0.0])
