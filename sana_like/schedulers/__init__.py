"""Samplers of the SANA family: thin state around the pure functions of `flow` and `trigflow`.

Every class keeps the configuration keys of the diffusers scheduler it replaces and writes a
`scheduler_config.json` that diffusers reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports

if TYPE_CHECKING:
    from sana_like.schedulers.flow import start_index as start_index
    from sana_like.schedulers.flow_dpm_solver import (
        FlowDPMSolverScheduler as FlowDPMSolverScheduler,
    )
    from sana_like.schedulers.flow_euler import FlowEulerScheduler as FlowEulerScheduler
    from sana_like.schedulers.flow_heun import FlowHeunScheduler as FlowHeunScheduler
    from sana_like.schedulers.noise import draw_noise as draw_noise
    from sana_like.schedulers.published import from_published as from_published
    from sana_like.schedulers.scm import SCMScheduler as SCMScheduler

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "FlowDPMSolverScheduler": "flow_dpm_solver",
        "FlowEulerScheduler": "flow_euler",
        "FlowHeunScheduler": "flow_heun",
        "SCMScheduler": "scm",
        "draw_noise": "noise",
        "from_published": "published",
        "start_index": "flow",
    },
)
