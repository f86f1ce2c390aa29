"""Pictures that go into a call: read, brought to its size, encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sana_like.transformers.offload import weights_present
from sana_like_pipelines.calls import Call
from sana_like_pipelines.pictures import fit, for_prompts, read_pictures, same_size
from sana_like_pipelines.recipe import picture_digest


class PictureSources:
    """Adds the way from pictures to latents to a pipeline."""

    vae: Any

    def _source(self, arguments: dict[str, Any]) -> list[Tensor]:
        """Source pictures; sets `height` and `width` to theirs where the call left them out."""
        pictures = read_pictures("image", arguments["image"])
        if arguments["height"] is None and arguments["width"] is None:
            arguments["height"], arguments["width"] = same_size("image", pictures)
        return pictures

    def _fitted(self, call: Call, pictures: Sequence[Tensor]) -> Tensor:
        """The sources as `[P, 3, height, width]` in [-1, 1], and their digests in the recipe."""
        sized = [fit(picture, call.size.height, call.size.width) for picture in pictures]
        call.context["inputs"] = {"image": [picture_digest(picture) for picture in sized]}
        return for_prompts("image", sized, call.inputs.count)

    def _encode_pictures(self, call: Call, pictures: Tensor) -> Tensor:
        """`[P, 3, height, width]` in [-1, 1] to latents `[P, Z, y, x]` fp32, each encoded once."""
        padded = call.size.pad(pictures).to(call.device, self.vae.dtype)
        with weights_present(self.vae):
            latents = self.vae.encode(padded).latent
        return latents.float() * self.vae.config.scaling_factor
