"""What counts as a whole number in an argument."""

from __future__ import annotations

import numbers
from typing import TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer of Python or NumPy, and neither a bool nor a float."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
