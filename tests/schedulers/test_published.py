"""Configurations to and from diffusers, and its numbers in the compatible mode."""

import json

import diffusers
import pytest
import torch

from sana_like.schedulers import (
    FlowDPMSolverScheduler,
    FlowEulerScheduler,
    FlowHeunScheduler,
    SCMScheduler,
    from_published,
)

TWENTY_STEPS = (
    ".9997 .9824 .9639 .9441 .9227 .8996 .8746 .8475 .8178 .7853 .7496 .7102 .6663 .6173 .5621 "
    ".4997 .4283 .3459 .2498 .1362 0"
)


def published_dpm(**settings):
    base = {"flow_shift": 3.0, "use_flow_sigmas": True, "prediction_type": "flow_prediction"}
    return diffusers.DPMSolverMultistepScheduler(**{**base, **settings})


def as_saved(scheduler):
    """What diffusers would write to scheduler_config.json."""
    return json.loads(scheduler.to_json_string())


def model(x, t):
    """A velocity that bends with state and time."""
    return torch.tanh(1.5 * x) + x.flip(-1) * 0.3 - t / 1000


def sample_with_ours(ours, theirs):
    """Both schedulers fed the same model outputs; the largest difference at any step."""
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    mine, other, worst = x, x, 0.0
    for t_ours, t_theirs in zip(ours.timesteps, theirs.timesteps, strict=True):
        output = model(other, t_theirs)
        mine = ours.step(output, t_ours, mine, return_dict=False)[0]
        other = theirs.step(output, t_theirs, other, return_dict=False)[0]
        worst = max(worst, float((mine - other).abs().max() / other.abs().max()))
    return worst


def test_twenty_step_table():
    scheduler = from_published(as_saved(published_dpm()), compatible=True)
    scheduler.set_timesteps(20)
    expected = torch.tensor([float(level) for level in TWENTY_STEPS.split()])
    torch.testing.assert_close(scheduler.sigmas, expected, atol=5.1e-5, rtol=0)
    told = scheduler.timesteps
    assert told.dtype == torch.int64 and told[[0, 1, 2, 19]].tolist() == [999, 982, 963, 136]


@pytest.mark.parametrize("steps", [*range(1, 51), 100, 1000])
@pytest.mark.parametrize("shift", [1.0, 3.0, 6.0])
def test_compatible_dpm_tables_are_bit_equal(steps, shift):
    theirs = published_dpm(flow_shift=shift)
    ours = from_published(as_saved(theirs), compatible=True)
    ours.set_timesteps(steps)
    theirs.set_timesteps(steps)
    assert ours.sigmas.equal(theirs.sigmas) and ours.timesteps.equal(theirs.timesteps)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 14, 15, 20, 50])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"solver_order": 1},
        {"solver_type": "heun"},
        {"lower_order_final": False},
        {"euler_at_final": True},
    ],
    ids=str,
)
def test_dpm_steps_equal_diffusers(steps, settings):
    theirs = published_dpm(**settings)
    ours = from_published(as_saved(theirs), compatible=True)
    ours.set_timesteps(steps)
    theirs.set_timesteps(steps)
    assert sample_with_ours(ours, theirs) < 1e-5


def test_default_mode_differs_from_diffusers_only_in_the_fraction_of_the_time():
    theirs = published_dpm()
    ours = from_published(as_saved(theirs))
    ours.set_timesteps(20)
    theirs.set_timesteps(20)
    assert ours.sigmas.equal(theirs.sigmas)
    assert ours.timesteps.long().equal(theirs.timesteps)
    assert not ours.timesteps.equal(theirs.timesteps.float())


@pytest.mark.parametrize("steps", [1, 2, 3, 20, 28, 50])
@pytest.mark.parametrize("shift", [1.0, 3.0, 8.0])
def test_compatible_euler_equals_diffusers(steps, shift):
    theirs = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    ours = from_published(as_saved(theirs), compatible=True)
    ours.set_timesteps(steps)
    theirs.set_timesteps(steps)
    torch.testing.assert_close(ours.sigmas, theirs.sigmas, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(ours.timesteps, theirs.timesteps, atol=1e-4, rtol=1e-6)
    assert sample_with_ours(ours, theirs) < 1e-5


def test_euler_shifts_its_smallest_level_once_unless_compatible():
    config = as_saved(diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0))
    for compatible, last in ((False, 0.00299), (True, 0.00893)):
        scheduler = from_published(config, compatible=compatible)
        scheduler.set_timesteps(20)
        assert float(scheduler.sigmas[-2]) == pytest.approx(last, abs=1e-5)


@pytest.mark.parametrize("steps", [2, 3, 10])
def test_compatible_heun_equals_diffusers(steps):
    theirs = diffusers.FlowMatchHeunDiscreteScheduler(shift=3.0)
    ours = from_published(as_saved(theirs), compatible=True)
    ours.set_timesteps(steps)
    theirs.set_timesteps(steps)
    torch.testing.assert_close(ours.sigmas, theirs.sigmas, atol=1e-7, rtol=1e-6)
    assert sample_with_ours(ours, theirs) < 1e-5


@pytest.mark.parametrize(
    ("config", "kind", "expected"),
    [
        (as_saved(published_dpm(flow_shift=6.0)), FlowDPMSolverScheduler, {"flow_shift": 6.0}),
        (
            as_saved(diffusers.FlowMatchEulerDiscreteScheduler(shift=2.0)),
            FlowEulerScheduler,
            {"shift": 2.0},
        ),
        (as_saved(diffusers.FlowMatchHeunDiscreteScheduler()), FlowHeunScheduler, {"shift": 1.0}),
        (as_saved(diffusers.SCMScheduler(sigma_data=0.7)), SCMScheduler, {"sigma_data": 0.7}),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler"}, FlowEulerScheduler, {"shift": 1.0}),
        ({"_class_name": "FlowDPMSolverScheduler"}, FlowDPMSolverScheduler, {"flow_shift": 3.0}),
    ],
)
def test_dispatch(config, kind, expected):
    scheduler = from_published(config)
    assert type(scheduler) is kind
    assert {key: scheduler.config[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_karras_sigmas": True}, "use_karras_sigmas=True"),
        ({"use_lu_lambdas": True}, "use_lu_lambdas=True"),
        ({"use_dynamic_shifting": True}, "use_dynamic_shifting=True"),
        ({"use_flow_sigmas": False}, "use_flow_sigmas=False"),
        ({"prediction_type": "epsilon"}, "prediction_type='epsilon'"),
        ({"algorithm_type": "sde-dpmsolver++"}, "algorithm_type='sde-dpmsolver"),
        ({"solver_type": "bh2"}, "solver_type='bh2'"),
        ({"final_sigmas_type": "sigma_min"}, "final_sigmas_type='sigma_min'"),
        ({"thresholding": True}, "thresholding=True"),
        ({"solver_order": 4}, "solver_order=4"),
        ({"flow_shift": -1.0}, "shift is -1.0"),
        ({"sigma_max": 80.0}, "sigma_max=80.0"),
        ({"_class_name": "UniPCMultistepScheduler"}, "'UniPCMultistepScheduler'"),
        ({"_class_name": None}, "_class_name None"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        from_published({**as_saved(published_dpm()), **change})


def test_a_key_that_diffusers_would_default_away_from_flow_is_refused():
    with pytest.raises(ValueError, match="prediction_type='epsilon'"):
        from_published({"_class_name": "DPMSolverMultistepScheduler", "flow_shift": 3.0})


def test_euler_variants_are_refused_by_name():
    config = as_saved(diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0))
    for key, value in (
        ("invert_sigmas", True),
        ("shift_terminal", 0.1),
        ("stochastic_sampling", True),
    ):
        with pytest.raises(ValueError, match=key):
            from_published({**config, key: value})


def test_third_order_has_no_compatible_mode():
    config = as_saved(published_dpm(solver_order=3))
    assert from_published(config).config["solver_order"] == 3
    with pytest.raises(ValueError, match="factor 2"):
        from_published(config, compatible=True)


@pytest.mark.parametrize(
    ("ours", "steps"),
    [
        (FlowDPMSolverScheduler(flow_shift=5.0), 12),
        (FlowDPMSolverScheduler(truncate_timesteps=True, solver_order=1), 5),
        (FlowEulerScheduler(shift=2.0, sigma_grid="euler_shifted_twice"), 12),
        (FlowHeunScheduler(shift=2.0, sigma_grid="euler_shifted_twice"), 6),
        (SCMScheduler(sigma_data=0.6), 2),
    ],
)
def test_a_saved_folder_loads_in_diffusers_and_here(ours, steps, tmp_path):
    ours.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["scheduler_config.json"]
    config = json.loads((tmp_path / "scheduler_config.json").read_text())
    theirs = getattr(diffusers, config["_class_name"]).from_pretrained(tmp_path)
    again = type(ours).from_pretrained(tmp_path)
    dispatched = from_published(config)
    for scheduler in (ours, theirs, again, dispatched):
        scheduler.set_timesteps(steps)
    assert again.timesteps.equal(ours.timesteps) and dispatched.timesteps.equal(ours.timesteps)
    torch.testing.assert_close(
        theirs.timesteps.float(), ours.timesteps.float(), atol=1.0 - 1e-6, rtol=1e-6
    )
    assert {k: again.config[k] for k in ours._setting_names()} == {
        k: ours.config[k] for k in ours._setting_names()
    }


def test_only_changed_extension_keys_are_written():
    assert "truncate_timesteps" not in FlowDPMSolverScheduler().published_config()
    changed = FlowDPMSolverScheduler(truncate_timesteps=True).published_config()
    assert changed["truncate_timesteps"] is True and "sigma_grid" not in changed


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full_disk(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        FlowEulerScheduler().save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_samplers_are_swapped_with_their_shift():
    dpm = published_dpm(flow_shift=5.0)
    for config in (
        dpm.config,
        as_saved(dpm),
        FlowDPMSolverScheduler.from_config(dpm.config).config,
    ):
        assert FlowEulerScheduler.from_config(config).config["shift"] == 5.0
        assert FlowHeunScheduler.from_config(config).config["shift"] == 5.0
    euler = diffusers.FlowMatchEulerDiscreteScheduler(shift=4.0)
    solver = FlowDPMSolverScheduler.from_config(euler.config, solver_order=3)
    assert (solver.config["flow_shift"], solver.config["solver_order"]) == (4.0, 3)
    heun = FlowHeunScheduler(shift=2.5)
    assert FlowEulerScheduler.from_config(heun.config).config["shift"] == 2.5


def test_a_live_diffusers_config_keeps_its_defaults():
    plain = diffusers.DPMSolverMultistepScheduler(
        use_flow_sigmas=True, prediction_type="flow_prediction"
    )
    assert FlowDPMSolverScheduler.from_config(plain.config).config["flow_shift"] == 1.0


def test_configs_of_another_kind_and_unknown_settings_are_refused():
    scm = diffusers.SCMScheduler()
    with pytest.raises(ValueError, match="TrigFlow"):
        FlowDPMSolverScheduler.from_config(as_saved(scm))
    with pytest.raises(ValueError, match="TrigFlow"):
        SCMScheduler.from_config(published_dpm().config)
    with pytest.raises(ValueError, match="flow_shfit"):
        FlowDPMSolverScheduler.from_config({}, flow_shfit=3.0)
    with pytest.raises(ValueError, match="dictionary"):
        FlowDPMSolverScheduler.from_config("some/folder")
    scheduler, unused = FlowEulerScheduler.from_config({}, return_unused_kwargs=True, other=1)
    assert isinstance(scheduler, FlowEulerScheduler) and unused == {"other": 1}
