"""Training of the SANA family: recipes, data, one loop, evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sana_like.lazy import lazy_exports

if TYPE_CHECKING:
    from sana_like_train.config import ConfigError as ConfigError
    from sana_like_train.reading import resolve as resolve
    from sana_like_train.running import export as export
    from sana_like_train.running import run as run

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {"ConfigError": "config", "resolve": "reading", "run": "running", "export": "running"},
)
