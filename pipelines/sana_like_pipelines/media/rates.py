"""Frame rates as exact fractions: 23.976 means 24000/1001."""

from __future__ import annotations

import math
from fractions import Fraction

from sana_like_pipelines.media.errors import ClipError

MAX_RATE = 1000
_NTSC = Fraction(1000, 1001)
# 23.98 is written for 23.976; 24 itself is five times as far away.
_SLACK = 2e-4
_LARGEST_DENOMINATOR = 1001


def exact_rate(value: int | float | str | Fraction) -> Fraction:
    """The frame rate that a number or text means, in frames per second.

    Whole rates and those of television, which are 1000/1001 of a whole one, are recognised from
    their usual decimals; other decimals become the nearest fraction.

    Args:
        value: such as 24, 23.976, "23.976", "24000/1001" or a `Fraction`.

    Raises:
        ClipError: no number, or not above 0 and at most 1000.
    """
    try:
        given = Fraction(value)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise ClipError(_message(value)) from error
    if isinstance(value, bool) or not 0 < given <= MAX_RATE:
        raise ClipError(_message(value))
    whole = max(round(given), 1)
    for candidate in (Fraction(whole), math.ceil(given) * _NTSC):
        if abs(given - candidate) <= _SLACK * candidate:
            return candidate
    return given.limit_denominator(_LARGEST_DENOMINATOR) or Fraction(1, _LARGEST_DENOMINATOR)


def rate_text(rate: Fraction) -> str:
    """`24` or `24000/1001`, which `exact_rate` reads back."""
    return str(rate)


def _message(value: object) -> str:
    return (
        f"{value!r} is no frame rate: it must be above 0 and at most {MAX_RATE} frames per second, "
        "such as 24, 23.976 or '24000/1001'"
    )
