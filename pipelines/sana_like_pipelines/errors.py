"""What can go wrong while a picture is made, once its inputs were accepted."""

from __future__ import annotations

from sana_like.finite import NonFiniteError

__all__ = ["Cancelled", "DecodeMemoryError", "NonFiniteError"]


class Cancelled(RuntimeError):
    """The `cancel` callable of a call said so; there is no picture.

    Attributes:
        step: how many steps were finished.
    """

    def __init__(self, step: int, total: int) -> None:
        self.step = step
        super().__init__(f"cancelled after {step} of {total} steps")


class DecodeMemoryError(MemoryError):
    """The autoencoder does not fit the memory, not even tile by tile."""
