"""From prompts to text features, by the rule a model was trained with."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from sana_like.finite import NonFiniteError
from sana_like.text.decoder import PrefixDecoder
from sana_like.text.encoding import TextEncoding
from sana_like.text.report import PromptTruncatedWarning, TokenReport
from sana_like.text.selection import PromptReading, PublishedReading, Reading
from sana_like.text.settings import TextSettings

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

__all__ = ["PromptEncoder"]

_RMS_EPS = 1e-6


class PromptEncoder:
    """A tokenizer and a decoder-only language model, read as SANA reads them.

    Prompts are encoded independently of each other: a prompt has the same features alone and in any
    batch. White space around a prompt is dropped; beyond that (and lower-casing, where the settings
    say so) it is read as typed. Empty prompts give the unconditional text.

    Args:
        tokenizer: a tokenizer of ``transformers``; it is not changed.
        text_encoder: a decoder (``AutoModel``) or a causal language model around one; only the
            decoder is run.
        settings: how prompts are read.

    Raises:
        ValueError: the settings do not fit the model.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, text_encoder: nn.Module, settings: TextSettings
    ) -> None:
        self.tokenizer = tokenizer
        self.text_encoder = text_encoder
        self.settings = settings
        self._decoder = PrefixDecoder(text_encoder, settings.hidden_layer)
        rule = PublishedReading if settings.selection == "published" else PromptReading
        self._rule = rule(tokenizer, settings)

    @property
    def width(self) -> int:
        """Channels C of the features."""
        return int(self._decoder.model.config.get_text_config().hidden_size)

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of tokenizer and weights: equal fingerprints give comparable features.

        Made of the names and shapes of all weights and sixteen values of each, rounded to bf16, so
        that a model loaded in bf16 has the same one as in fp32.
        """
        digest = hashlib.sha256()
        probe = self.tokenizer("A fox, 12 red apples & a café - 3D emoji")["input_ids"]
        digest.update(json.dumps([len(self.tokenizer), probe]).encode())
        for name, weight in sorted(self._decoder.model.state_dict().items()):
            flat = weight.detach().reshape(-1)
            if flat.is_meta:
                raise ValueError("the text encoder's weights are not in memory (offloaded to meta)")
            places = torch.arange(16, device=flat.device) * (flat.numel() - 1) // 15
            sample = flat[places].to("cpu", torch.bfloat16).float().tolist()
            digest.update(json.dumps([name, list(weight.shape), sample]).encode())
        return digest.hexdigest()[:16]

    def encode(
        self,
        prompts: Sequence[str],
        *,
        negative: bool = False,
        batch_size: int = 32,
        device: torch.device | str | None = None,
    ) -> TextEncoding:
        """Encode B prompts.

        Args:
            prompts: texts; may be empty strings.
            negative: whether these are negative prompts. The published rule reads them without
                instruction; the selection ``"prompt"`` makes no difference.
            batch_size: how many run at once; no influence on the result beyond rounding.
            device: where the decoder computes, default: where its weights are.

        Returns:
            Features ``[B, L, C]`` in the decoder's dtype, ``L = settings.max_sequence_length``,
            with a mask and a report per prompt. A warning is given for every prompt that was cut.

        Raises:
            ValueError: not a list of strings.
            NonFiniteError: features that are not finite.
        """
        texts = [self._prepare(prompt) for prompt in _check_prompts(prompts)]
        where = torch.device(device) if device is not None else self._decoder.device
        if not texts:
            shape = (0, self.settings.max_sequence_length)
            embeds = torch.zeros(*shape, self.width, device=where, dtype=self._decoder.dtype)
            return TextEncoding(embeds, torch.zeros(shape, device=where, dtype=torch.bool))
        readings = [self._rule.read(text, negative=negative) for text in texts]
        groups: dict[tuple[int, ...], list[int]] = {}
        for row, reading in enumerate(readings):
            groups.setdefault(reading.ids[: reading.shared], []).append(row)
        features: dict[int, torch.Tensor] = {}
        for prefix, rows in groups.items():
            states = self._decoder.hidden_states(
                [readings[row].ids for row in rows], prefix, batch_size=batch_size, device=where
            )
            for row, state in zip(rows, states, strict=True):
                features[row] = state[list(readings[row].kept)]  # [n, C]
        for reading in readings:
            if reading.report.truncated:
                warnings.warn(reading.report.message(), PromptTruncatedWarning, stacklevel=2)
        return self._pack(
            [features[row] for row in range(len(readings))],
            tuple(reading.report for reading in readings),
        )

    def read(self, prompt: str, *, negative: bool = False) -> Reading:
        """What :meth:`encode` would read of one prompt and keep of it; the decoder does not run.

        Raises:
            ValueError: not a string.
        """
        (text,) = _check_prompts([prompt])
        return self._rule.read(self._prepare(text), negative=negative)

    def forget(self) -> None:
        """Read the instruction again next time, after the decoder's weights were changed."""
        self._decoder.forget()

    def _prepare(self, prompt: str) -> str:
        text = prompt.strip()
        return text.lower().strip() if self.settings.lowercase else text

    def _pack(self, rows: list[torch.Tensor], reports: tuple[TokenReport, ...]) -> TextEncoding:
        """Pad to ``[B, L, C]`` with zeros, normalise, check."""
        first = rows[0]
        shape = (len(rows), self.settings.max_sequence_length)
        embeds = first.new_zeros(*shape, first.shape[-1])
        mask = torch.zeros(shape, dtype=torch.bool, device=first.device)
        for row, state in enumerate(rows):
            values = state.float()
            if self.settings.rms_normalize:
                values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + _RMS_EPS)
            embeds[row, : len(values)] = values.to(embeds.dtype)
            mask[row, : len(values)] = True
        if not bool(torch.isfinite(embeds).all()):
            raise NonFiniteError(
                "text encoding",
                "the text encoder gave values that are not finite: "
                f"run it in another dtype than {embeds.dtype} (bfloat16 or float32)",
            )
        return TextEncoding(embeds, mask, reports)


def _check_prompts(prompts: Sequence[str]) -> list[str]:
    if prompts is None or isinstance(prompts, (str, bytes)):
        raise ValueError(f"prompts is {prompts!r}: give a list of strings; '' stands for no prompt")
    for place, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise ValueError(
                f"prompt {place} is {prompt!r} ({type(prompt).__name__}): prompts are strings; "
                "'' stands for no prompt"
            )
    return list(prompts)
