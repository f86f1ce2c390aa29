"""TrigFlow functions and the few-step scheduler."""

import math

import diffusers
import pytest
import torch

from sana_like.schedulers import SCMScheduler, draw_noise, trigflow

SIGMA_DATA = 0.5


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_time_is_a_bijection_with_the_known_points():
    s = torch.linspace(0, math.pi / 2, 101, dtype=torch.float64)
    tau = trigflow.trigflow_to_flow_time(s)
    torch.testing.assert_close(tau[[0, 50, 100]], torch.tensor([0.0, 0.5, 1.0]).double())
    assert (tau.diff() > 0).all()
    torch.testing.assert_close(trigflow.flow_to_trigflow_time(tau), s)


def test_point_mass_is_predicted_exactly_at_every_time():
    """With the exact velocity of a point mass the wrapped network returns that point."""
    x0 = torch.randn(3, 4, dtype=torch.float64, generator=seeded(0)) * SIGMA_DATA
    noise = torch.randn(3, 4, dtype=torch.float64, generator=seeded(1))
    for s in torch.linspace(0.01, math.pi / 2, 20, dtype=torch.float64):
        x = trigflow.trigflow_add_noise(x0, noise, float(s), SIGMA_DATA)
        model_input, tau = trigflow.trigflow_model_input(x, s.expand(3), SIGMA_DATA)
        level = tau[0]
        # the network sees the rectified-flow state of data with unit deviation
        torch.testing.assert_close(model_input, (1 - level) * x0 / SIGMA_DATA + level * noise)
        velocity = (model_input - x0 / SIGMA_DATA) / level
        prediction = SIGMA_DATA * trigflow.trigflow_output(model_input, velocity, tau)
        torch.testing.assert_close(trigflow.trigflow_to_x0(x, prediction, float(s)), x0)


@pytest.mark.parametrize("steps", [*range(1, 51), 1000])
def test_every_step_count_works_without_further_arguments(steps):
    scheduler = SCMScheduler()
    scheduler.set_timesteps(steps)
    assert scheduler.num_inference_steps == steps and len(scheduler.timesteps) == steps + 1
    assert (scheduler.timesteps.diff() < 0).all() and scheduler.timesteps[-1] == 0


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("generators", ["one", "per sample", "global"])
def test_equals_diffusers_including_the_order_of_noise(steps, generators):
    def sources():
        torch.manual_seed(5)
        return {"one": seeded(3), "per sample": [seeded(3), seeded(4)], "global": None}[generators]

    results = []
    for scheduler in (SCMScheduler(), diffusers.SCMScheduler()):
        plain = isinstance(scheduler, diffusers.SCMScheduler)
        extra = {"intermediate_timesteps": None} if plain and steps != 2 else {}
        scheduler.set_timesteps(steps, **extra)
        source = sources()
        x, path = torch.randn(2, 4, 5, 5, generator=seeded(0)) * SIGMA_DATA, []
        for t in scheduler.timesteps[:-1]:
            moved, clean = scheduler.step(
                torch.tanh(x) + t, t, x, generator=source, return_dict=False
            )
            path += [moved, clean]
            x = moved
        results.append((scheduler.timesteps, path, torch.randn(1, generator=sources_left(source))))
    (times, ours, next_ours), (times_theirs, theirs, next_theirs) = results
    assert times.equal(times_theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-6)
    assert next_ours.equal(next_theirs)  # the same amount of noise was drawn


def sources_left(source):
    return source[0] if isinstance(source, list) else source


def test_a_sample_is_the_same_alone_and_in_a_batch():
    def sample(seeds):
        scheduler = SCMScheduler()
        scheduler.set_timesteps(4)
        generators = [seeded(seed) for seed in seeds]
        x = draw_noise((len(seeds), 3, 5), generators) * SIGMA_DATA
        for t in scheduler.timesteps[:-1]:
            x = scheduler.step(0.5 * x, t, x, generator=generators).prev_sample
        return x

    batch = sample([11, 22, 33, 44])
    assert torch.cat([sample([11, 22, 33]), sample([44])]).equal(batch)
    assert torch.cat([sample([seed]) for seed in (11, 22, 33, 44)]).equal(batch)


def test_the_last_state_is_the_predicted_clean_sample():
    scheduler = SCMScheduler()
    for steps in range(1, 5):
        scheduler.set_timesteps(steps)
        x = torch.randn(2, 3)
        for t in scheduler.timesteps[:-1]:
            out = scheduler.step(torch.sin(x), t, x)
            x = out.prev_sample
        assert x.equal(out.pred_original_sample)


def test_reuse_and_clones_equal_a_fresh_one():
    def sample(scheduler):
        scheduler.set_timesteps(2)
        x, generator = torch.ones(1, 8), seeded(7)
        for t in scheduler.timesteps[:-1]:
            x = scheduler.step(0.1 * x, t, x, generator=generator).prev_sample
        return x

    scheduler = SCMScheduler()
    first = sample(scheduler)
    assert sample(scheduler).equal(first) and sample(scheduler.fresh()).equal(first)


def test_custom_times_with_or_without_the_last_zero():
    for times in ([1.57080, 1.1, 0.4], [1.57080, 1.1, 0.4, 0.0], torch.tensor([1.57080, 1.1, 0.4])):
        scheduler = SCMScheduler()
        scheduler.set_timesteps(timesteps=times)
        torch.testing.assert_close(scheduler.timesteps, torch.tensor([1.57080, 1.1, 0.4, 0.0]))
        assert scheduler.num_inference_steps == 3


def test_image_to_image_keeps_part_of_the_picture():
    """diffusers' two-step default drops it: strength 0.6 starts at pure noise there."""
    scheduler = SCMScheduler()
    scheduler.set_timesteps(2, strength=0.6)
    torch.testing.assert_close(scheduler.timesteps, torch.tensor([0.94248, 0.78, 0.0]))
    noise, start = torch.zeros(1, 3), scheduler.timesteps[0]
    kept = scheduler.scale_noise(torch.ones(1, 3), start, noise)
    torch.testing.assert_close(kept, torch.full((1, 3), math.cos(0.94248)))
    noisy = scheduler.scale_noise(torch.zeros(1, 3), start, torch.ones(1, 3))
    torch.testing.assert_close(noisy, torch.full((1, 3), SIGMA_DATA * math.sin(0.94248)))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({}, "exactly one"),
        ({"num_inference_steps": 2, "timesteps": [1.0]}, "exactly one"),
        ({"num_inference_steps": 0}, "from 1 to 1000"),
        ({"num_inference_steps": 2, "strength": 0.0}, "strength"),
        ({"num_inference_steps": 2, "max_timesteps": 1.0}, "fall strictly"),
        ({"timesteps": [2.0, 1.0]}, "fall strictly"),
        ({"timesteps": []}, "fall strictly"),
    ],
)
def test_unusable_schedules_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        SCMScheduler().set_timesteps(**setting)


def test_misuse_is_refused():
    x = torch.zeros(4, 3)
    scheduler = SCMScheduler()
    with pytest.raises(ValueError, match="set_timesteps"):
        scheduler.step(x, 1.0, x)
    scheduler.set_timesteps(1)
    with pytest.raises(ValueError, match="3 generators were given for 4 samples"):
        scheduler.step(x, scheduler.timesteps[0], x, generator=[seeded(i) for i in range(3)])
    scheduler.step(x, scheduler.timesteps[0], x)
    with pytest.raises(ValueError, match="finished"):
        scheduler.step(x, scheduler.timesteps[1], x)
    for times in (torch.tensor([1.0, 0.5]), -0.1, 1.7, math.nan):
        with pytest.raises(ValueError, match="one trigonometric time from 0 to"):
            scheduler.scale_noise(x, times, x)
    for setting in ({"prediction_type": "epsilon"}, {"sigma_data": 0.0}, {"sigma_data": math.nan}):
        with pytest.raises(ValueError, match=next(iter(setting))):
            SCMScheduler(**setting)


def test_values_that_are_not_finite_are_passed_on():
    scheduler = SCMScheduler()
    scheduler.set_timesteps(2)
    out = scheduler.step(torch.tensor([[0.0, math.nan]]), scheduler.timesteps[0], torch.ones(1, 2))
    assert out.prev_sample.isnan().tolist() == [[False, True]]


def test_noise_has_the_dtype_and_device_asked_for():
    wide, half = (draw_noise((2, 8), seeded(1), dtype=dt) for dt in (torch.float32, torch.bfloat16))
    assert half.dtype == torch.bfloat16 and half.equal(wide.bfloat16())
    assert draw_noise((2, 8), seeded(1), device="meta").device.type == "meta"
