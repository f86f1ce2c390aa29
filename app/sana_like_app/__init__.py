"""What people start: the command line, and the pieces that other front ends share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports

if TYPE_CHECKING:
    from sana_like_app.devices import DeviceError as DeviceError
    from sana_like_app.devices import choose_device as choose_device
    from sana_like_app.devices import choose_dtype as choose_dtype

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {"DeviceError": "devices", "choose_device": "devices", "choose_dtype": "devices"},
)
