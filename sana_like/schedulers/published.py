"""Reading diffusers' scheduler configurations, and refusing what would not be honoured.

A configuration means what it means in diffusers: keys it lacks have diffusers' defaults, not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

NO_LIMIT: tuple[Any, ...] = ()


@dataclass(frozen=True)
class PublishedFormat:
    """The keys of one diffusers scheduler and what we make of them.

    Attributes:
        name: diffusers' class name.
        module, ours: home and name of the class here that takes its place.
        shift_key: key of the flow shift; empty where there is none.
        defaults: diffusers' defaults of the keys that we read.
        legal: the values that we can honour; `NO_LIMIT` leaves the check to our constructor.
        ignored: keys without effect once `legal` holds.
        compatible: extension settings that reproduce diffusers number for number.
    """

    name: str
    module: str
    ours: str
    shift_key: str
    defaults: Mapping[str, Any]
    legal: Mapping[str, tuple[Any, ...]]
    ignored: frozenset[str] = frozenset()
    compatible: Mapping[str, Any] = field(default_factory=dict)


_OFF = (False, None)
_NO_OTHER_SIGMAS = {
    "use_karras_sigmas": _OFF,
    "use_exponential_sigmas": _OFF,
    "use_beta_sigmas": _OFF,
    "use_dynamic_shifting": _OFF,
}

FORMATS = (
    PublishedFormat(
        name="DPMSolverMultistepScheduler",
        module="flow_dpm_solver",
        ours="FlowDPMSolverScheduler",
        shift_key="flow_shift",
        defaults={
            "num_train_timesteps": 1000,
            "solver_order": 2,
            "prediction_type": "epsilon",
            "algorithm_type": "dpmsolver++",
            "solver_type": "midpoint",
            "lower_order_final": True,
            "euler_at_final": False,
            "use_flow_sigmas": False,
            "flow_shift": 1.0,
            "final_sigmas_type": "zero",
        },
        legal={
            **_NO_OTHER_SIGMAS,
            "num_train_timesteps": NO_LIMIT,
            "solver_order": (1, 2, 3),
            "prediction_type": ("flow_prediction",),
            "algorithm_type": ("dpmsolver++",),
            "solver_type": ("midpoint", "heun"),
            "lower_order_final": NO_LIMIT,
            "euler_at_final": NO_LIMIT,
            "use_flow_sigmas": (True,),
            "flow_shift": NO_LIMIT,
            "final_sigmas_type": ("zero",),
            "use_lu_lambdas": _OFF,
            "thresholding": _OFF,
        },
        # Flow sigmas replace the variance-preserving schedule that these keys describe.
        ignored=frozenset(
            {
                *("beta_start", "beta_end", "beta_schedule", "trained_betas", "steps_offset"),
                *("dynamic_thresholding_ratio", "sample_max_value", "lambda_min_clipped"),
                *("variance_type", "timestep_spacing", "rescale_betas_zero_snr"),
                "time_shift_type",
            }
        ),
        compatible={"sigma_grid": "dpm", "truncate_timesteps": True},
    ),
    PublishedFormat(
        name="FlowMatchEulerDiscreteScheduler",
        module="flow_euler",
        ours="FlowEulerScheduler",
        shift_key="shift",
        defaults={"num_train_timesteps": 1000, "shift": 1.0},
        legal={
            **_NO_OTHER_SIGMAS,
            "num_train_timesteps": NO_LIMIT,
            "shift": NO_LIMIT,
            "invert_sigmas": _OFF,
            "shift_terminal": (None, 0, False),
            "stochastic_sampling": _OFF,
        },
        # Without dynamic shifting nothing reads these.
        ignored=frozenset(
            {
                *("base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len"),
                "time_shift_type",
            }
        ),
        compatible={"sigma_grid": "euler_shifted_twice"},
    ),
    PublishedFormat(
        name="FlowMatchHeunDiscreteScheduler",
        module="flow_heun",
        ours="FlowHeunScheduler",
        shift_key="shift",
        defaults={"num_train_timesteps": 1000, "shift": 1.0},
        legal={"num_train_timesteps": NO_LIMIT, "shift": NO_LIMIT},
        compatible={"sigma_grid": "euler_shifted_twice"},
    ),
    PublishedFormat(
        name="SCMScheduler",
        module="scm",
        ours="SCMScheduler",
        shift_key="",
        defaults={"num_train_timesteps": 1000, "prediction_type": "trigflow", "sigma_data": 0.5},
        legal={
            "num_train_timesteps": NO_LIMIT,
            "prediction_type": ("trigflow",),
            "sigma_data": NO_LIMIT,
        },
    ),
)

_TELLING_KEYS = {
    "use_flow_sigmas": "DPMSolverMultistepScheduler",
    "base_shift": "FlowMatchEulerDiscreteScheduler",
    "sigma_data": "SCMScheduler",
}


def from_published(config: Mapping[str, Any], *, compatible: bool = False) -> Any:
    """The scheduler here that a diffusers scheduler configuration asks for.

    Args:
        config: content of `scheduler_config.json`; `_class_name` chooses the class.
        compatible: reproduce diffusers number for number, faults included: DPM-Solver timesteps
            truncated to integers, FlowMatch's smallest level shifted twice. Default: the network
            receives the time it stands at, and the shift is applied once.

    Raises:
        ValueError: an unknown class, an unknown key, or a setting that would not be honoured; the
            message names it.
    """
    fmt = format_of(config)
    cls = getattr(import_module(f"{__package__}.{fmt.module}"), fmt.ours)
    extra = dict(fmt.compatible) if compatible else {}
    if compatible and config.get("solver_order") == 3:
        raise ValueError(
            "solver_order=3 cannot be reproduced: diffusers' third-order update lacks a factor 2; "
            "use solver_order 1 or 2, or compatible=False"
        )
    return cls.from_config(dict(config), **extra)


def format_of(config: Mapping[str, Any]) -> PublishedFormat:
    """The format that the configuration's `_class_name` names, diffusers' name or ours.

    Raises:
        ValueError: no class name, or one that has no counterpart here.
    """
    name = config.get("_class_name")
    for fmt in FORMATS:
        if name in (fmt.name, fmt.ours):
            return fmt
    supported = ", ".join(fmt.name for fmt in FORMATS)
    raise ValueError(
        f"the scheduler configuration has _class_name {name!r}; supported are {supported}"
    )


def guess_format(config: Mapping[str, Any], fallback: PublishedFormat) -> PublishedFormat:
    """Like `format_of`; without a class name the format whose keys the configuration has.

    `scheduler.config` of a live scheduler has no class name.
    """
    if "_class_name" in config:
        return format_of(config)
    by_name = {fmt.name: fmt for fmt in FORMATS}
    for key, name in _TELLING_KEYS.items():
        if key in config:
            return by_name[name]
    return fallback


def read_settings(
    config: Mapping[str, Any], fmt: PublishedFormat, extensions: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings that the configuration gives our class of the same format.

    Keys that a configuration of diffusers' class lacks are added with diffusers' defaults.

    Args:
        config: the configuration; keys beginning with `_` are skipped.
        fmt: its format.
        extensions: our own keys that may occur beside diffusers'.

    Raises:
        ValueError: an unknown key or a value that cannot be honoured.
    """
    settings = dict(fmt.defaults) if config.get("_class_name") == fmt.name else {}
    for key, value in config.items():
        if key.startswith("_") or key in fmt.ignored:
            continue
        if key in extensions or key in fmt.defaults:
            settings[key] = value
        elif key not in fmt.legal:
            raise ValueError(
                f"{key}={value!r} is not a setting of {fmt.name} known here; remove the key if it "
                "has no effect"
            )
        _check_legal(key, value, fmt)
    for key, value in settings.items():
        _check_legal(key, value, fmt)
    return settings


def _check_legal(key: str, value: Any, fmt: PublishedFormat) -> None:
    legal = fmt.legal.get(key, NO_LIMIT)
    if legal and value not in legal:
        choices = " or ".join(repr(choice) for choice in legal)
        raise ValueError(
            f"{key}={value!r} of {fmt.name} cannot be honoured; it must be {choices}. "
            "Use diffusers' own scheduler for such a configuration"
        )
