"""Reading of prompts by a pipeline's own tokenizer and text encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sana_like.text.encoder import PromptEncoder
from sana_like.text.encoding import TextEncoding
from sana_like.text.settings import TextSettings, published_settings
from sana_like_pipelines.lifecycle import SanaLifecycle
from sana_like_pipelines.prompts import (
    PromptFeatures,
    PromptInputs,
    check_prompts,
    encode_features,
)

INSTRUCTION_OF_MODEL = "default"
"""As `complex_human_instruction`: what the model was trained with."""


class TextReading(SanaLifecycle):
    """Adds `encode_prompt` and what calls need of the text encoder."""

    _prompt_encoder: tuple[tuple[Any, ...], PromptEncoder] | None = None

    def active_text_settings(
        self,
        max_sequence_length: int | None = None,
        complex_human_instruction: Sequence[str] | str | None = INSTRUCTION_OF_MODEL,
    ) -> TextSettings:
        """How prompts are read: the model's way, with the changes given."""
        settings = self.text_settings or published_settings(pipeline=self.published_class)
        if max_sequence_length is not None:
            settings = replace(settings, max_sequence_length=max_sequence_length)
        if complex_human_instruction != INSTRUCTION_OF_MODEL:
            settings = replace(settings, instruction=_instruction(complex_human_instruction))
        return settings

    def encode_prompt(
        self,
        prompt: str | Sequence[str] | None = None,
        do_classifier_free_guidance: bool = True,
        negative_prompt: str | Sequence[str] | None = "",
        num_images_per_prompt: int = 1,
        device: torch.device | str | None = None,
        prompt_embeds: Tensor | TextEncoding | None = None,
        negative_prompt_embeds: Tensor | TextEncoding | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        max_sequence_length: int | None = None,
        complex_human_instruction: Sequence[str] | str | None = INSTRUCTION_OF_MODEL,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Text features, for calls of their own later; arguments as in `__call__`.

        Returns:
            `prompt_embeds [B, L, C]`, `prompt_attention_mask [B, L]`, and the same of the negative
            prompts, or `None`; rows in the order a a b b.
        """
        inputs = check_prompts(
            prompt, negative_prompt, prompt_embeds, prompt_attention_mask,
            negative_prompt_embeds, negative_prompt_attention_mask, num_images_per_prompt,
        )  # fmt: skip
        settings = self.active_text_settings(max_sequence_length, complex_human_instruction)
        where = torch.device(device) if device is not None else self._execution_device
        features = self._encode(inputs, settings, do_classifier_free_guidance, where)
        rows = features.repeated(num_images_per_prompt)
        return rows.embeds, rows.mask, rows.negative_embeds, rows.negative_mask

    def _encode(
        self, inputs: PromptInputs, settings: TextSettings, use_negative: bool, device: torch.device
    ) -> PromptFeatures:
        def encode(texts: list[str], negative: bool) -> TextEncoding:
            encoder = self._encoder_for(settings)
            return encoder.encode(texts, negative=negative, device=device)

        return encode_features(inputs, use_negative=use_negative, encode=encode, device=device)

    def _encoder_for(self, settings: TextSettings) -> PromptEncoder:
        """The prompt encoder; it keeps what the text encoder made of the instruction."""
        key = (settings, id(self.tokenizer), id(self.text_encoder), self.text_encoder.dtype)
        if self._prompt_encoder is None or self._prompt_encoder[0] != key:
            encoder = PromptEncoder(self.tokenizer, self.text_encoder, settings)
            self._prompt_encoder = (key, encoder)
        return self._prompt_encoder[1]


def _instruction(lines: Sequence[str] | str | None) -> str | None:
    if not lines:
        return None
    if isinstance(lines, str):
        return lines
    if not all(isinstance(line, str) for line in lines):
        raise ValueError(
            f"complex_human_instruction={lines!r}: give a text, a list of lines, or None"
        )
    return "\n".join(lines)
