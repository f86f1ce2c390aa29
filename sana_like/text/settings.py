"""How a prompt becomes features: one frozen record that travels with every model of ours."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from sana_like.text.instruction import EMBEDDED_INSTRUCTION, published_instruction

__all__ = [
    "EMBEDDED_HIDDEN_LAYER",
    "TextSettings",
    "embedded_settings",
    "published_settings",
]

EMBEDDED_HIDDEN_LAYER = 24
"""Layer of SmolLM2-135M (of 30) whose output our models read: later ones speak of the next word."""


@dataclass(frozen=True)
class TextSettings:
    """Settings of a text encoder; two encodings are comparable only if these are equal.

    Raises:
        ValueError: a value is out of its range.
    """

    instruction: str | None = None
    """Text that is read before the prompt and whose features are dropped."""
    max_sequence_length: int = 300
    """Number of positions L of an encoding. The instruction does not count."""
    hidden_layer: int | None = None
    """Index into the decoder's hidden states (0 = embeddings); ``None``: last, after the norm."""
    rms_normalize: bool = False
    """Whether each token's features are divided by their root mean square."""
    lowercase: bool = False
    """Whether prompts are lower-cased before they are read."""
    selection: Literal["published", "prompt"] = "published"
    """Which positions are kept.

    ``"published"``: SANA's rule. The first position and the last L - 1 of instruction and prompt,
    read together; negative and empty prompts are read without instruction.
    ``"prompt"``: the instruction's last token and the prompt, all prompts being read after the
    instruction; an empty prompt is that one token.
    """

    def __post_init__(self) -> None:
        if self.selection not in ("published", "prompt"):
            raise ValueError(f"selection is {self.selection!r}: it must be 'published' or 'prompt'")
        if not _is_count(self.max_sequence_length, least=2):
            raise ValueError(
                f"max_sequence_length is {self.max_sequence_length!r}: it must be a whole number "
                "of 2 or more"
            )
        if self.hidden_layer is not None and not _is_count(self.hidden_layer, least=0):
            raise ValueError(f"hidden_layer is {self.hidden_layer!r}: count from 0, or give None")
        if self.instruction is not None and not isinstance(self.instruction, str):
            raise ValueError(f"instruction is {self.instruction!r}: it must be a text, or None")
        for name in ("rms_normalize", "lowercase"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be true or false")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TextSettings:
        """Inverse of :meth:`to_dict`.

        Raises:
            ValueError: unknown keys.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"unknown text settings {unknown}; known: {sorted(known)}")
        return cls(**values)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def published_settings(
    max_sequence_length: int = 300, *, pipeline: str = "SanaPipeline"
) -> TextSettings:
    """Settings that the published SANA weights were trained with (SANA, section 3.1).

    The instruction is read from the installed diffusers, so that it is the one users of those
    weights know, to the letter; ``pipeline`` is the class of diffusers whose it is.
    """
    return TextSettings(
        instruction=published_instruction(pipeline),
        max_sequence_length=max_sequence_length,
        hidden_layer=None,
        rms_normalize=False,
        lowercase=True,
        selection="published",
    )


def embedded_settings() -> TextSettings:
    """Settings of the embedded models, for :func:`sana_like.text.load_smollm2`."""
    return TextSettings(
        instruction=EMBEDDED_INSTRUCTION,
        max_sequence_length=78,
        hidden_layer=EMBEDDED_HIDDEN_LAYER,
        rms_normalize=True,
        lowercase=False,
        selection="prompt",
    )
