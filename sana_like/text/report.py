"""What became of a prompt: how many of its tokens were read, and what was cut off."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PromptTruncatedWarning", "TokenReport"]


class PromptTruncatedWarning(UserWarning):
    """A prompt was longer than the encoder's limit and was cut."""


@dataclass(frozen=True)
class TokenReport:
    """Token counts of one prompt; the instruction and special tokens are not counted."""

    tokens_used: int
    """User tokens that reached the encoding."""
    tokens_total: int
    """User tokens of the whole prompt."""
    token_limit: int
    """How many user tokens fit."""
    dropped_words: tuple[str, ...] = ()
    """The first words that were cut off, at most eight."""

    @property
    def truncated(self) -> bool:
        """Whether anything was cut off."""
        return self.tokens_used < self.tokens_total

    def message(self) -> str:
        """One sentence for the user about what was cut."""
        words = " ".join(self.dropped_words)
        return (
            f"prompt cut: {self.tokens_used} of its {self.tokens_total} tokens were used "
            f"(limit {self.token_limit}); dropped from: {words!r}"
        )
