"""Lets the scripts run from a plain copy of the repository, which need not be installed."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
for folder in (".", "kernels", "pipelines"):
    sys.path.insert(0, str(ROOT / folder))
