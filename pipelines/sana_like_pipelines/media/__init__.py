"""Picture and clip files: reading what users have, writing what was made with its recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports

if TYPE_CHECKING:
    from sana_like_pipelines.media.clip import Clip as Clip
    from sana_like_pipelines.media.clip import ClipInfo as ClipInfo
    from sana_like_pipelines.media.clip_read import probe_clip as probe_clip
    from sana_like_pipelines.media.clip_read import read_clip as read_clip
    from sana_like_pipelines.media.clip_read import stream_clip as stream_clip
    from sana_like_pipelines.media.clip_write import ClipWriter as ClipWriter
    from sana_like_pipelines.media.clip_write import clip_writer as clip_writer
    from sana_like_pipelines.media.clip_write import write_clip as write_clip
    from sana_like_pipelines.media.errors import ClipError as ClipError
    from sana_like_pipelines.media.errors import PictureError as PictureError
    from sana_like_pipelines.media.errors import PictureNotice as PictureNotice
    from sana_like_pipelines.media.metadata import parameters_text as parameters_text
    from sana_like_pipelines.media.metadata import read_recipe as read_recipe
    from sana_like_pipelines.media.metadata import sidecar_path as sidecar_path
    from sana_like_pipelines.media.paths import safe_output as safe_output
    from sana_like_pipelines.media.rates import exact_rate as exact_rate
    from sana_like_pipelines.media.read import read_mask as read_mask
    from sana_like_pipelines.media.read import read_picture as read_picture
    from sana_like_pipelines.media.sheet import contact_sheet as contact_sheet
    from sana_like_pipelines.media.write import write_picture as write_picture

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Clip": "clip",
        "ClipError": "errors",
        "ClipInfo": "clip",
        "ClipWriter": "clip_write",
        "PictureError": "errors",
        "PictureNotice": "errors",
        "clip_writer": "clip_write",
        "contact_sheet": "sheet",
        "exact_rate": "rates",
        "parameters_text": "metadata",
        "probe_clip": "clip_read",
        "read_clip": "clip_read",
        "read_mask": "read",
        "read_picture": "read",
        "read_recipe": "metadata",
        "safe_output": "paths",
        "sidecar_path": "metadata",
        "stream_clip": "clip_read",
        "write_clip": "clip_write",
        "write_picture": "write",
    },
)
