"""A picture as the first frame of clips: fitted in proportion, encoded, held clean."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sana_like.transformers.offload import weights_present
from sana_like_pipelines.calls import Call
from sana_like_pipelines.fitting import Fit, fit_picture, size_in_proportion
from sana_like_pipelines.pictures import for_prompts, read_pictures
from sana_like_pipelines.recipe import picture_digest
from sana_like_pipelines.video_base import VideoPipeline


class FromFirstFrame(VideoPipeline):
    """Base of pipelines whose clips can begin with a picture that is given."""

    def _read_first(self, arguments: dict[str, Any]) -> list[Tensor]:
        """The given pictures; sets `height` and `width` to their shape where the call says none.

        Then the clip has about as many pixels as those of the training, in the shape of the first
        picture, on the model's grid.
        """
        pictures = read_pictures("image", arguments["image"])
        if arguments["height"] is None and arguments["width"] is None:
            native = self.trained_for
            shape = (pictures[0].shape[-2], pictures[0].shape[-1])
            arguments["height"], arguments["width"] = size_in_proportion(
                shape, native.height * native.width, self.grid
            )
        return pictures

    def _fit_first(self, call: Call, pictures: list[Tensor], how: Fit) -> Tensor:
        """The pictures at the size of the clip, `[P, 3, height, width]` in [-1, 1].

        What was done to them, and their digests, go into the recipe.
        """
        fitted = [fit_picture(one, call.size.height, call.size.width, how) for one in pictures]
        call.context["inputs"] = {"image": [picture_digest(picture) for picture, _ in fitted]}
        call.context["fitted"] = [record.to_dict() for _, record in fitted]
        return for_prompts("image", [picture for picture, _ in fitted], call.inputs.count)

    def _encode_first(self, call: Call, pictures: Tensor) -> Tensor:
        """Latent first frames `[B, Z, 1, y, x]`, fp32; each picture is encoded once."""
        padded = call.size.pad(pictures).to(call.device)
        unique = padded[:1] if torch.equal(padded, padded[:1].expand_as(padded)) else padded
        with weights_present(self.vae):
            latents = self.codec.encode_video(unique.unsqueeze(2)).float()
        rows = latents.expand(len(padded), -1, -1, -1, -1)
        return rows.repeat_interleave(call.inputs.per_prompt, dim=0)
