"""The user's folders: one place each for what can be made again and for what cannot."""

from __future__ import annotations

from pathlib import Path

import platformdirs

_NAME = "sana-like"


def user_cache() -> Path:
    """Folder of what can be fetched or computed again. Nothing is created."""
    # Without an author, Windows names the folder as the other systems do.
    return Path(platformdirs.user_cache_dir(_NAME, appauthor=False))


def user_data() -> Path:
    """Folder of runs, checkpoints and packs. Nothing is created."""
    return Path(platformdirs.user_data_dir(_NAME, appauthor=False))
