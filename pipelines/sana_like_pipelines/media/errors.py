"""What can be wrong with a picture or clip file."""

from __future__ import annotations


class PictureError(ValueError):
    """A picture, a recipe or a file name that cannot be used; the message names it."""


class ClipError(PictureError):
    """A clip that cannot be read or written; the message names it."""


class PictureNotice(UserWarning):
    """A picture or clip was read, but not all of it was used or understood."""
