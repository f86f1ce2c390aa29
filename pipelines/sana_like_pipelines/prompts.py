"""From the prompt arguments of a call to text features, by one broadcast rule.

P prompts times n pictures each make a batch of `B = P * n` in the order a a b b. Negative prompts,
masks and precomputed embeddings follow the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sana_like.finite import require_finite
from sana_like.text.encoding import TextEncoding
from sana_like.text.report import TokenReport
from sana_like_pipelines.whole import is_whole

Encode = Callable[[list[str], bool], TextEncoding]
"""Texts, and whether they are negative prompts, to features."""


@dataclass(frozen=True)
class PromptInputs:
    """Checked prompt arguments; see `check_prompts`."""

    prompts: list[str] | None
    negatives: list[str] | None
    embeds: Tensor | None
    mask: Tensor | None
    negative_embeds: Tensor | None
    negative_mask: Tensor | None
    count: int
    """Number of prompts P."""
    per_prompt: int
    """Pictures per prompt n."""

    @property
    def batch(self) -> int:
        """Number of pictures B."""
        return self.count * self.per_prompt


@dataclass(frozen=True)
class PromptFeatures:
    """Text features of P prompts, before pictures per prompt are counted."""

    embeds: Tensor
    """`[P, L, C]`."""
    mask: Tensor
    """Bool `[P, L]`."""
    negative_embeds: Tensor | None = None
    """`[P, L', C]`."""
    negative_mask: Tensor | None = None
    """Bool `[P, L']`."""
    reports: tuple[TokenReport, ...] = ()

    def repeated(self, times: int) -> PromptFeatures:
        """Rows for every picture: a b becomes a a b b."""

        def rows(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.repeat_interleave(times, dim=0)

        return replace(
            self,
            embeds=self.embeds.repeat_interleave(times, dim=0),
            mask=self.mask.repeat_interleave(times, dim=0),
            negative_embeds=rows(self.negative_embeds),
            negative_mask=rows(self.negative_mask),
        )


def check_prompts(
    prompt: str | Sequence[str] | None,
    negative_prompt: str | Sequence[str] | None,
    prompt_embeds: Tensor | TextEncoding | None,
    prompt_attention_mask: Tensor | None,
    negative_prompt_embeds: Tensor | TextEncoding | None,
    negative_prompt_attention_mask: Tensor | None,
    num_images_per_prompt: int,
    count_argument: str = "num_images_per_prompt",
) -> PromptInputs:
    """Refuse prompt arguments that contradict each other or have no meaning.

    Args:
        prompt: P texts, or one; the empty text is the unconditional one.
        negative_prompt: one text for all prompts, or P of them; `None` and `""` are the same.
        prompt_embeds: `[P, L, C]` instead of `prompt`, or a `TextEncoding`.
        prompt_attention_mask: `[P, L]`, non-zero where a token is real.
        negative_prompt_embeds: `[P, L', C]`, or `[1, L', C]` for all prompts.
        negative_prompt_attention_mask: `[P, L']` or `[1, L']`.
        num_images_per_prompt: n.
        count_argument: name of that argument, for messages.

    Raises:
        ValueError: what was given, what is legal, what to do.
    """
    if not is_whole(num_images_per_prompt) or num_images_per_prompt < 1:
        raise ValueError(
            f"{count_argument}={num_images_per_prompt!r} must be a whole number of 1 or more"
        )
    if (prompt is None) == (prompt_embeds is None):
        given = "neither was given" if prompt is None else "both were given"
        raise ValueError(
            f"give exactly one of prompt and prompt_embeds, {given}; '' stands for no prompt"
        )
    embeds, mask = _features("prompt", prompt_embeds, prompt_attention_mask)
    negative_embeds, negative_mask = _features(
        "negative_prompt", negative_prompt_embeds, negative_prompt_attention_mask
    )
    prompts = None if prompt is None else _texts("prompt", prompt)
    count = len(prompts) if prompts is not None else len(embeds) if embeds is not None else 0
    negatives = _negatives(negative_prompt, count, negative_embeds is not None)
    if negative_embeds is not None and negative_mask is not None:
        if len(negative_embeds) not in (1, count):
            raise ValueError(
                f"negative_prompt_embeds has {len(negative_embeds)} rows for {count} prompts: give "
                f"1 or {count}"
            )
        if embeds is not None and embeds.shape[-1] != negative_embeds.shape[-1]:
            raise ValueError(
                f"prompt_embeds has width {embeds.shape[-1]} and negative_prompt_embeds "
                f"{negative_embeds.shape[-1]}: encode both with the same text encoder"
            )
        times = count // len(negative_embeds)
        negative_embeds = negative_embeds.repeat_interleave(times, dim=0)
        negative_mask = negative_mask.repeat_interleave(times, dim=0)
    return PromptInputs(
        prompts, negatives, embeds, mask, negative_embeds, negative_mask, count,
        num_images_per_prompt,
    )  # fmt: skip


def encode_features(
    inputs: PromptInputs, *, use_negative: bool, encode: Encode, device: torch.device
) -> PromptFeatures:
    """Encode what has to be encoded and check that all of it is finite.

    Args:
        inputs: from `check_prompts`.
        use_negative: whether any step reads the negative prompts.
        encode: runs the text encoder.
        device: where the features go.

    Raises:
        NonFiniteError: features hold NaN or infinity.
    """
    reports: tuple[TokenReport, ...] = ()
    if inputs.prompts is not None:
        encoding = encode(inputs.prompts, False).to(device)
        embeds, mask, reports = encoding.embeds, encoding.mask, encoding.reports
    else:
        assert inputs.embeds is not None and inputs.mask is not None
        embeds, mask = inputs.embeds.to(device), inputs.mask.to(device)
    require_finite(embeds, "text encoding of the prompt")
    if not use_negative:
        return PromptFeatures(embeds, mask, reports=reports)
    if inputs.negative_embeds is not None and inputs.negative_mask is not None:
        negative, negative_mask = inputs.negative_embeds.to(device), inputs.negative_mask.to(device)
    else:
        negative, negative_mask = _encode_once(inputs.negatives or [""] * inputs.count, encode)
        negative, negative_mask = negative.to(device), negative_mask.to(device)
    require_finite(negative, "text encoding of the negative prompt")
    return PromptFeatures(embeds, mask, negative, negative_mask, reports)


def _encode_once(texts: list[str], encode: Encode) -> tuple[Tensor, Tensor]:
    """Features of negative prompts, of which most are equal: each is run through once."""
    unique = list(dict.fromkeys(texts))
    encoding = encode(unique, True)
    rows = [unique.index(text) for text in texts]
    return encoding.embeds[rows], encoding.mask[rows]


def _texts(name: str, value: str | Sequence[str]) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, (bytes, dict)) or not isinstance(texts, Sequence) or not texts:
        raise ValueError(f"{name}={value!r} must be a text or a non-empty list of texts")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                f"{name} number {place} is {text!r} ({type(text).__name__}): each must be a text; "
                "'' stands for no prompt"
            )
    return list(texts)


def _negatives(value: str | Sequence[str] | None, count: int, has_embeds: bool) -> list[str] | None:
    if has_embeds:
        # The default "" stands for nothing said, not for a second negative prompt.
        if value:
            raise ValueError(
                "negative_prompt and negative_prompt_embeds were both given: leave one out"
            )
        return None
    if value is None or isinstance(value, str):
        return [value or ""] * count
    texts = _texts("negative_prompt", value)
    if len(texts) != count:
        raise ValueError(
            f"negative_prompt has {len(texts)} texts for {count} prompts: give one text, or {count}"
        )
    return texts


def _features(
    name: str, embeds: Tensor | TextEncoding | None, mask: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    if isinstance(embeds, TextEncoding):
        if mask is not None:
            raise ValueError(f"{name}_embeds holds its own mask: leave {name}_attention_mask out")
        return embeds.embeds, embeds.mask
    if embeds is None:
        if mask is not None:
            raise ValueError(f"{name}_attention_mask was given without {name}_embeds")
        return None, None
    if embeds.ndim != 3 or 0 in embeds.shape or not embeds.is_floating_point():
        raise ValueError(
            f"{name}_embeds is {embeds.dtype} of shape {list(embeds.shape)}: it must be floating "
            "point [prompts, tokens, width]"
        )
    if mask is None:
        raise ValueError(
            f"{name}_embeds needs {name}_attention_mask [prompts, tokens], non-zero where a token "
            "is real; without padding, ones"
        )
    if tuple(mask.shape) != tuple(embeds.shape[:2]):
        raise ValueError(
            f"{name}_attention_mask has shape {list(mask.shape)}, {name}_embeds "
            f"{list(embeds.shape)}: the first two sides must be equal"
        )
    return embeds, mask.bool()
