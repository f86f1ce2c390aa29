"""Texts that a decoder reads before the prompt, so that it takes the prompt as a picture.

SANA (section 2.3.2) calls this the complex human instruction. Nothing is generated: the features of
the prompt's own tokens, after the instruction was read, are what the transformer sees.
"""

from __future__ import annotations

import inspect

__all__ = ["EMBEDDED_INSTRUCTION", "published_instruction"]

EMBEDDED_INSTRUCTION = (
    "Imagine the picture that these words name: its subject, parts, colours, shapes and style.\n"
    "Picture:"
)
"""Our own wording, for our own models; the prompt follows after one space."""


def published_instruction(pipeline: str = "SanaPipeline") -> str:
    """The published instruction, from the default of a diffusers pipeline's ``__call__``.

    Args:
        pipeline: name of the class; those for clips speak of motion where ``SanaPipeline`` does
            not. Classes that diffusers does not have mean ``SanaPipeline``.

    Raises:
        RuntimeError: the installed diffusers has no such default any more.
    """
    import diffusers

    kind = getattr(diffusers, pipeline, None) or diffusers.SanaPipeline
    parameters = inspect.signature(kind.__call__).parameters
    lines = getattr(parameters.get("complex_human_instruction"), "default", None)
    if not isinstance(lines, (list, tuple)) or not all(isinstance(line, str) for line in lines):
        raise RuntimeError(
            f"the installed diffusers states no default instruction for {kind.__name__}: "
            "install diffusers 0.42, or give the instruction in TextSettings"
        )
    return "\n".join(lines)
