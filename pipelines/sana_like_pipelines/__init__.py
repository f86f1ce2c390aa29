"""Pipelines of the SANA family: from a prompt, and what else there is, to pictures.

    from sana_like_pipelines import SanaPipeline

    pipe = SanaPipeline.from_pretrained("emoji")  # embedded; or a folder; or a hub id
    pipe("a red apple, 3d").images[0].save("apple.png")

Importing the package loads no model library; each public name is imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports

if TYPE_CHECKING:
    from sana_like_pipelines.controlnet import SanaControlNetPipeline as SanaControlNetPipeline
    from sana_like_pipelines.errors import Cancelled as Cancelled
    from sana_like_pipelines.errors import DecodeMemoryError as DecodeMemoryError
    from sana_like_pipelines.errors import NonFiniteError as NonFiniteError
    from sana_like_pipelines.image_to_video import (
        SanaImageToVideoPipeline as SanaImageToVideoPipeline,
    )
    from sana_like_pipelines.img2img import SanaImg2ImgPipeline as SanaImg2ImgPipeline
    from sana_like_pipelines.inpaint import SanaInpaintPipeline as SanaInpaintPipeline
    from sana_like_pipelines.long_video import SanaLongVideoPipeline as SanaLongVideoPipeline
    from sana_like_pipelines.outputs import SanaPipelineOutput as SanaPipelineOutput
    from sana_like_pipelines.outputs import SanaVideoPipelineOutput as SanaVideoPipelineOutput
    from sana_like_pipelines.preview import fit_latent_rgb as fit_latent_rgb
    from sana_like_pipelines.sprint import SanaSprintPipeline as SanaSprintPipeline
    from sana_like_pipelines.sprint_img2img import (
        SanaSprintImg2ImgPipeline as SanaSprintImg2ImgPipeline,
    )
    from sana_like_pipelines.stream import StreamState as StreamState
    from sana_like_pipelines.stream import VideoStream as VideoStream
    from sana_like_pipelines.text_to_image import SanaPipeline as SanaPipeline
    from sana_like_pipelines.text_to_video import SanaVideoPipeline as SanaVideoPipeline
    from sana_like_pipelines.video_settings import VideoSettings as VideoSettings

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Cancelled": "errors",
        "DecodeMemoryError": "errors",
        "NonFiniteError": "errors",
        "SanaControlNetPipeline": "controlnet",
        "SanaImageToVideoPipeline": "image_to_video",
        "SanaImg2ImgPipeline": "img2img",
        "SanaInpaintPipeline": "inpaint",
        "SanaLongVideoPipeline": "long_video",
        "SanaPipeline": "text_to_image",
        "SanaPipelineOutput": "outputs",
        "SanaSprintImg2ImgPipeline": "sprint_img2img",
        "SanaSprintPipeline": "sprint",
        "SanaVideoPipeline": "text_to_video",
        "SanaVideoPipelineOutput": "outputs",
        "StreamState": "stream",
        "VideoSettings": "video_settings",
        "VideoStream": "stream",
        "fit_latent_rgb": "preview",
    },
)
