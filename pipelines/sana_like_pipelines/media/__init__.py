"""Picture files: reading what users have, writing what was made with its recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports

if TYPE_CHECKING:
    from sana_like_pipelines.media.errors import PictureError as PictureError
    from sana_like_pipelines.media.errors import PictureNotice as PictureNotice
    from sana_like_pipelines.media.metadata import parameters_text as parameters_text
    from sana_like_pipelines.media.metadata import read_recipe as read_recipe
    from sana_like_pipelines.media.metadata import sidecar_path as sidecar_path
    from sana_like_pipelines.media.paths import safe_output as safe_output
    from sana_like_pipelines.media.read import read_mask as read_mask
    from sana_like_pipelines.media.read import read_picture as read_picture
    from sana_like_pipelines.media.sheet import contact_sheet as contact_sheet
    from sana_like_pipelines.media.write import write_picture as write_picture

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "PictureError": "errors",
        "PictureNotice": "errors",
        "contact_sheet": "sheet",
        "parameters_text": "metadata",
        "read_mask": "read",
        "read_picture": "read",
        "read_recipe": "metadata",
        "safe_output": "paths",
        "sidecar_path": "metadata",
        "write_picture": "write",
    },
)
