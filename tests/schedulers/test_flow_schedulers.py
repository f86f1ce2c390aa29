"""Schedulers of rectified flow: every step count, starts in the middle, order, state."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch

from sana_like.schedulers import (
    FlowDPMSolverScheduler,
    FlowEulerScheduler,
    FlowHeunScheduler,
    flow,
    start_index,
)

MAKERS = {
    "dpm1": partial(FlowDPMSolverScheduler, solver_order=1),
    "dpm2": FlowDPMSolverScheduler,
    "dpm2_heun": partial(FlowDPMSolverScheduler, solver_type="heun"),
    "dpm3": partial(FlowDPMSolverScheduler, solver_order=3),
    "dpm2_nvlabs": partial(FlowDPMSolverScheduler, sigma_grid="nvlabs"),
    "euler": FlowEulerScheduler,
    "heun": FlowHeunScheduler,
}
all_schedulers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def gaussian_velocity(x, sigma, mean=0.7, spread=0.4):
    """Exact velocity for data N(mean, spread^2)."""
    variance = (1 - sigma) ** 2 * spread**2 + sigma**2
    x0 = mean + (1 - sigma) * spread**2 / variance * (x - (1 - sigma) * mean)
    return (x - x0) / sigma


def gaussian_state(sigma, z, mean=0.7, spread=0.4):
    """The exact path of the flow through the point that `z` names."""
    return (1 - sigma) * mean + math.hypot((1 - sigma) * spread, sigma) * z


def run(scheduler, x, model=gaussian_velocity, begin=0, stop=None):
    """Sample from evaluation `begin`; returns the state and the last result."""
    scheduler.set_begin_index(begin)
    out = None
    for t in scheduler.timesteps[begin:stop]:
        out = scheduler.step(model(x, float(t) / 1000), t, x)
        x = out.prev_sample
    return x, out


@all_schedulers
@pytest.mark.parametrize("steps", range(1, 51))
def test_every_step_count_ends_at_the_predicted_clean_sample(make, steps):
    scheduler = make()
    scheduler.set_timesteps(steps)
    assert len(scheduler.timesteps) == scheduler.order * steps - (scheduler.order - 1)
    assert len(scheduler.sigmas) == len(scheduler.timesteps) + 1 and scheduler.sigmas[-1] == 0
    x, out = run(scheduler, torch.randn(2, 3, generator=torch.Generator().manual_seed(steps)))
    assert x.isfinite().all() and x.equal(out.pred_original_sample)


@all_schedulers
def test_fractional_times_reach_the_model(make):
    scheduler = make()
    scheduler.set_timesteps(20)
    assert scheduler.timesteps.dtype == torch.float32
    torch.testing.assert_close(scheduler.timesteps, 1000 * scheduler.sigmas[:-1])
    assert (scheduler.timesteps % 1 != 0).sum() > 15


def global_error(make, sigmas, stop):
    scheduler = make()
    scheduler.set_timesteps(sigmas=sigmas)
    levels = scheduler.sigmas.double()
    z = torch.tensor([1.3, -0.4], dtype=torch.float64)
    x, _ = run(scheduler, gaussian_state(float(levels[0]), z), stop=stop)
    end = float(levels[stop])
    return float((x - gaussian_state(end, z)).abs().max())


def ramped_levels(step, order):
    """Levels evenly spaced in lambda after first steps that grow from `step ** order`.

    A multistep solver begins at first order; small first steps keep that from showing.
    """
    growth = [min(step, step**order * 2**k) for k in range(60) if step**order * 2**k < 2 * step]
    lam = [-2.0, *(-2.0 + np.cumsum(growth))]
    lam = [*lam, *np.linspace(lam[-1], 1.5, round((1.5 - lam[-1]) / step) + 1)[1:]]
    return [1 / (1 + math.exp(value)) for value in lam]


@pytest.mark.parametrize(
    ("name", "order"),
    [("dpm1", 1), ("dpm2", 2), ("dpm2_heun", 2), ("dpm3", 3), ("euler", 1), ("heun", 2)],
)
def test_global_convergence_order(name, order):
    counts, errors = [], []
    for step in (0.1, 0.05, 0.025, 0.0125):
        levels = ramped_levels(step, order)
        evaluations = (len(levels) - 1) * MAKERS[name]().order
        errors.append(global_error(MAKERS[name], levels, evaluations))
        counts.append(1 / step)
    slope = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert slope == pytest.approx(order, abs=0.3), errors


@all_schedulers
def test_more_steps_come_closer_to_the_answer(make):
    z = torch.tensor([1.3, -0.4])
    errors = []
    for steps in (5, 20, 80):
        scheduler = make()
        scheduler.set_timesteps(steps)
        x, _ = run(scheduler, gaussian_state(float(scheduler.sigmas[0]), z))
        errors.append(float((x - gaussian_state(0.0, z)).abs().max()))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.03


@all_schedulers
def test_point_mass_is_hit_in_any_number_of_steps(make):
    for steps in (1, 2, 3, 20):
        scheduler = make()
        scheduler.set_timesteps(steps)
        x, _ = run(scheduler, torch.randn(4), model=lambda x, sigma: (x - 0.3) / sigma)
        torch.testing.assert_close(x, torch.full((4,), 0.3), atol=1e-5, rtol=0)


@all_schedulers
def test_setting_the_steps_twice_changes_nothing(make):
    scheduler = make()
    scheduler.set_timesteps(7)
    first = scheduler.timesteps.clone(), scheduler.sigmas.clone()
    scheduler.set_timesteps(7)
    assert scheduler.timesteps.equal(first[0]) and scheduler.sigmas.equal(first[1])


@all_schedulers
def test_reuse_and_clones_equal_a_fresh_one(make):
    start = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    used = make()
    used.set_timesteps(4)
    run(used, start, stop=3)  # left in the middle of a run, in Heun's case of a step
    clones = {"fresh": used.fresh(), "deepcopy": copy.deepcopy(used), "reused": used}
    reference = make()
    reference.set_timesteps(6)
    expected, _ = run(reference, start)
    for name, scheduler in clones.items():
        scheduler.set_timesteps(6)
        assert run(scheduler, start)[0].equal(expected), name
    assert used.fresh().num_inference_steps is None


@all_schedulers
def test_a_deepcopy_runs_apart_from_its_original(make):
    original = make()
    original.set_timesteps(5)
    x = torch.randn(3)
    original.step(gaussian_velocity(x, 0.9), original.timesteps[0], x)
    clone = copy.deepcopy(original)
    clone.step(gaussian_velocity(x, 0.9), clone.timesteps[1], x)
    assert (original.step_index, clone.step_index) == (1, 2)


@pytest.mark.parametrize("name", ["dpm1", "euler", "heun"])
def test_a_start_in_the_middle_equals_the_tail_of_a_full_run(name):
    start = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    scheduler = _at(MAKERS[name](), 10)
    begin = start_index(0.6, 10) * scheduler.order
    full, _ = run(scheduler, start)
    middle, _ = run(_at(scheduler, 10), start, stop=begin)
    tail, _ = run(_at(scheduler, 10), middle, begin=begin)
    assert begin == 4 * scheduler.order and tail.equal(full)


@all_schedulers
def test_without_a_begin_index_the_first_timestep_finds_its_place(make):
    start = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    scheduler = _at(make(), 10)
    begin = 4 * scheduler.order
    expected, _ = run(_at(scheduler, 10), start, begin=begin)
    x = start
    for t in scheduler.timesteps[begin:]:
        x = scheduler.step(gaussian_velocity(x, float(t) / 1000), t, x).prev_sample
    assert x.equal(expected)


def _at(scheduler, steps):
    again = scheduler.fresh()
    again.set_timesteps(steps)
    return again


def test_bf16_states_are_computed_in_fp32():
    scheduler = FlowDPMSolverScheduler()
    x = torch.randn(64).bfloat16()
    exact, rounded = _at(scheduler, 8), _at(scheduler, 8)
    velocity = torch.randn(64).bfloat16()
    out = rounded.step(velocity, rounded.timesteps[0], x)
    wide = exact.step(velocity.float(), exact.timesteps[0], x.float())
    assert out.prev_sample.dtype == torch.bfloat16
    assert out.pred_original_sample.equal(wide.pred_original_sample)
    assert out.prev_sample.equal(wide.prev_sample.bfloat16())


@all_schedulers
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_passed_on(make, bad):
    scheduler = _at(make(), 4)
    x = torch.zeros(3)
    out = scheduler.step(torch.tensor([0.0, bad, 0.0]), scheduler.timesteps[0], x)
    assert not out.prev_sample[1].isfinite() and out.prev_sample[[0, 2]].isfinite().all()


@all_schedulers
def test_custom_levels_are_final(make):
    published = [1000.0, 960.0, 889.0, 727.0]
    scheduler = make()
    if scheduler.order == 2:
        expected = [1000, 960, 960, 889, 889, 727, 727]
    else:
        expected = [1000, 960, 889, 727]
    for setting in (
        {"timesteps": published},
        {"timesteps": torch.tensor([*published, 0.0])},
        {"sigmas": [1.0, 0.96, 0.889, 0.727]},
        {"sigmas": np.array([1.0, 0.96, 0.889, 0.727, 0.0])},
    ):
        scheduler.set_timesteps(**setting)
        torch.testing.assert_close(scheduler.timesteps, torch.tensor(expected).float())
        assert scheduler.num_inference_steps == 4
        x, out = run(scheduler, torch.randn(3))
        assert x.isfinite().all() and x.equal(out.pred_original_sample)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({}, "exactly one"),
        ({"num_inference_steps": 4, "sigmas": [0.5]}, "exactly one"),
        ({"sigmas": [0.5, 0.5]}, "fall strictly"),
        ({"sigmas": [0.4, 0.5]}, "fall strictly"),
        ({"sigmas": [1.1, 0.5]}, "at or below 1"),
        ({"sigmas": []}, "fall strictly"),
        ({"sigmas": [0.0]}, "fall strictly"),
        ({"sigmas": [math.nan]}, "fall strictly"),
        ({"timesteps": [1001.0]}, "at or below 1000"),
        ({"num_inference_steps": 0}, "from 1 to 1000"),
        ({"num_inference_steps": 2.5}, "from 1 to 1000"),
    ],
)
def test_unusable_schedules_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        FlowDPMSolverScheduler().set_timesteps(**setting)


@all_schedulers
def test_misuse_of_step_is_refused(make):
    scheduler, x = make(), torch.zeros(2, 3)
    with pytest.raises(ValueError, match="set_timesteps"):
        scheduler.step(x, 999.0, x)
    scheduler.set_timesteps(2)
    with pytest.raises(ValueError, match="not in the schedule"):
        scheduler.step(x, 123.4, x)
    with pytest.raises(ValueError, match=r"\(2, 3\).*|shape"):
        scheduler.step(x[:1], scheduler.timesteps[0], x)
    for t in scheduler.timesteps:
        scheduler.step(x, t, x)
    with pytest.raises(ValueError, match="finished"):
        scheduler.step(x, scheduler.timesteps[-1], x)


def test_begin_index_must_begin_a_step():
    scheduler = _at(FlowHeunScheduler(), 4)
    for index in (-2, 1, 7, 8):
        with pytest.raises(ValueError, match="multiple of 2 from 0 to 6"):
            scheduler.set_begin_index(index)


@all_schedulers
def test_scale_noise_reaches_the_level_of_the_timestep(make):
    scheduler = _at(make(), 5)
    clean, noise = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)
    for index, t in enumerate(scheduler.timesteps):
        expected = flow.add_noise(clean, noise, scheduler.sigmas[index])
        torch.testing.assert_close(scheduler.scale_noise(clean, t, noise), expected)
        torch.testing.assert_close(scheduler.add_noise(clean, noise, t.expand(2)), expected)
    mixed = scheduler.scale_noise(clean, torch.tensor([250.0, 750.0]), noise)
    torch.testing.assert_close(mixed[0], 0.75 * clean[0] + 0.25 * noise[0])
    torch.testing.assert_close(mixed[1], 0.25 * clean[1] + 0.75 * noise[1])
    assert scheduler.scale_noise(clean.bfloat16(), t, noise).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="1001"):
        scheduler.scale_noise(clean, 1001.0, noise)
    with pytest.raises(ValueError, match="3 timesteps were given for 2 samples"):
        scheduler.scale_noise(clean, torch.ones(3), noise)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"solver_order": 4}, "solver_order is 4"),
        ({"prediction_type": "epsilon"}, "prediction_type is 'epsilon'"),
        ({"algorithm_type": "sde-dpmsolver++"}, "algorithm_type"),
        ({"solver_type": "bh2"}, "solver_type"),
        ({"use_flow_sigmas": False}, "use_flow_sigmas"),
        ({"final_sigmas_type": "sigma_min"}, "final_sigmas_type"),
        ({"flow_shift": 0.0}, "shift is 0.0"),
        ({"sigma_grid": "karras"}, "sigma_grid 'karras'"),
    ],
)
def test_settings_that_are_not_honoured_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        FlowDPMSolverScheduler(**setting)
