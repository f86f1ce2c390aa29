"""What people start: the command line, and the pieces that other front ends share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports

if TYPE_CHECKING:
    from sana_like_app.devices import DeviceError as DeviceError
    from sana_like_app.generation import Studio as Studio
    from sana_like_app.request import PictureRequest as PictureRequest
    from sana_like_app.setup import Placement as Placement
    from sana_like_app.setup import Setup as Setup

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "DeviceError": "devices",
        "PictureRequest": "request",
        "Placement": "setup",
        "Setup": "setup",
        "Studio": "generation",
    },
)
