"""Networks of the SANA family and their maths.

Importing the package loads no model library; each public name is imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports
from sana_like.version import __version__ as __version__

if TYPE_CHECKING:
    from sana_like.autoencoders.dc_ae import AutoencoderDC as AutoencoderDC
    from sana_like.autoencoders.dc_ae_video import AutoencoderDCVideo as AutoencoderDCVideo
    from sana_like.schedulers.flow_dpm_solver import (
        FlowDPMSolverScheduler as FlowDPMSolverScheduler,
    )
    from sana_like.schedulers.flow_euler import FlowEulerScheduler as FlowEulerScheduler
    from sana_like.schedulers.flow_heun import FlowHeunScheduler as FlowHeunScheduler
    from sana_like.schedulers.scm import SCMScheduler as SCMScheduler
    from sana_like.state import State as State
    from sana_like.transformers.controlnet import SanaControlNetModel as SanaControlNetModel
    from sana_like.transformers.image import SanaTransformer2DModel as SanaTransformer2DModel
    from sana_like.transformers.video import (
        SanaVideoTransformer3DModel as SanaVideoTransformer3DModel,
    )
    from sana_like.weights.errors import WeightsError as WeightsError

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "AutoencoderDC": "autoencoders.dc_ae",
        "AutoencoderDCVideo": "autoencoders.dc_ae_video",
        "FlowDPMSolverScheduler": "schedulers.flow_dpm_solver",
        "FlowEulerScheduler": "schedulers.flow_euler",
        "FlowHeunScheduler": "schedulers.flow_heun",
        "SCMScheduler": "schedulers.scm",
        "SanaControlNetModel": "transformers.controlnet",
        "SanaTransformer2DModel": "transformers.image",
        "SanaVideoTransformer3DModel": "transformers.video",
        "State": "state",
        "WeightsError": "weights.errors",
    },
)
