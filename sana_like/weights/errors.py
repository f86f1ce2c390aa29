"""The error of everything that reads or writes weights."""

from __future__ import annotations


class WeightsError(ValueError):
    """Weights, or the configuration beside them, that cannot be used as they are.

    The message names the file, what was found, what is legal and what to do about it. It is raised
    before any tensor is put into a model.
    """
