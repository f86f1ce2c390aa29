"""From prompts to text features, by the rule a model was trained with."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from sana_like.text.decoder import PrefixDecoder
from sana_like.text.encoding import TextEncoding
from sana_like.text.report import PromptTruncatedWarning, TokenReport
from sana_like.text.settings import TextSettings

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

__all__ = ["PromptEncoder"]

_DROPPED_WORDS = 8
_RMS_EPS = 1e-6


class PromptEncoder:
    """A tokenizer and a decoder-only language model, read as SANA reads them.

    Prompts are encoded independently of each other: a prompt has the same features alone and in any
    batch. White space around a prompt is dropped; beyond that (and lower-casing, where the settings
    say so) it is read as typed. Empty prompts give the unconditional text.

    Args:
        tokenizer: a tokenizer of ``transformers``; it is not changed.
        text_encoder: a decoder (``AutoModel``) or a causal language model, of which only the decoder
            is run.
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
        if settings.selection == "prompt" and tokenizer.eos_token_id is None:
            raise ValueError("selection 'prompt' needs a tokenizer with an end token (eos_token)")

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
            ValueError: not a list of strings, or features that are not finite.
        """
        texts = [self._prepare(prompt) for prompt in _check_prompts(prompts)]
        where = torch.device(device) if device is not None else self._decoder.device
        if not texts:
            empty = torch.zeros(0, self.settings.max_sequence_length, self.width, device=where)
            return TextEncoding(empty, torch.zeros(empty.shape[:2], dtype=torch.bool), ())
        if self.settings.selection == "published":
            rows, reports = self._published(texts, negative, batch_size, where)
        else:
            rows, reports = self._after_instruction(texts, batch_size, where)
        for report in reports:
            if report.truncated:
                warnings.warn(report.message(), PromptTruncatedWarning, stacklevel=2)
        return self._pack(rows, reports)

    def _prepare(self, prompt: str) -> str:
        text = prompt.strip()
        return text.lower().strip() if self.settings.lowercase else text

    def _ids(self, text: str, *, special: bool) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=special)["input_ids"])

    @cached_property
    def _instruction_ids(self) -> list[int]:
        """Ids of the instruction alone, with the tokenizer's own first token."""
        return self._ids(self.settings.instruction or "", special=True)

    def _published(
        self, texts: list[str], negative: bool, batch_size: int, device: torch.device
    ) -> tuple[list[torch.Tensor], list[TokenReport]]:
        """SANA's rule: instruction and prompt read as one text of at most ``n + L - 2`` tokens, of
        which position 0 and the last ``L - 1`` are kept (n: tokens of the instruction alone).

        The text is padded to full length before positions are counted, so the window begins at
        position n - 1, the instruction's last token: two places are taken by the first token and,
        in Gemma's vocabulary, by the space that ends the instruction and merges into the prompt.
        """
        length = self.settings.max_sequence_length
        rows: list[torch.Tensor | None] = [None] * len(texts)
        reports: list[TokenReport | None] = [None] * len(texts)
        # The unconditional text is the empty one, which training reads without instruction.
        plain = [negative or not text or not self.settings.instruction for text in texts]
        for bare in (True, False):
            chosen = [row for row, is_plain in enumerate(plain) if is_plain == bare]
            if not chosen:
                continue
            lead = "" if bare else self.settings.instruction or ""
            lead_ids = self._ids(lead, special=True) if bare else self._instruction_ids
            # One token may merge into the prompt, hence the last one is not shared.
            limit = length if bare else len(lead_ids) + length - 2
            full = [self._ids(lead + texts[row], special=True) for row in chosen]
            cut = [
                ids if len(ids) <= limit else self._truncated(lead + texts[row], limit)
                for row, ids in zip(chosen, full, strict=True)
            ]
            prefix = [] if bare else _common_prefix([lead_ids[:-1], *[ids[:-1] for ids in cut]])
            states = self._decoder.hidden_states(cut, prefix, batch_size=batch_size, device=device)
            for row, all_ids, ids, state in zip(chosen, full, cut, states, strict=True):
                start = 1 if bare else limit - (length - 1)
                rows[row] = torch.cat([state[:1], state[start:]])  # [n, C]
                reports[row] = self._report(lead, texts[row], all_ids, len(ids), limit)
        return [row for row in rows if row is not None], [r for r in reports if r is not None]

    def _after_instruction(
        self, texts: list[str], batch_size: int, device: torch.device
    ) -> tuple[list[torch.Tensor], list[TokenReport]]:
        """Our own rule: ``[start] instruction | prompt end``, of which the part after the bar is kept.

        The first token of a decoder's input collects attention and has a norm far above the others;
        it always belongs to the dropped part. The end token sees the whole prompt; it is also what
        an empty prompt consists of.
        """
        limit = self.settings.max_sequence_length - 1
        prefix = list(self._instruction_ids)
        start = self.tokenizer.bos_token_id
        if start is not None and prefix[:1] != [start]:
            prefix = [start, *prefix]
        end = [self.tokenizer.eos_token_id]
        # The leading space makes the first word the token that it is inside a sentence.
        full = [self._ids(f" {text}", special=False) if text else [] for text in texts]
        sequences = [[*prefix, *ids[:limit], *end] for ids in full]
        states = self._decoder.hidden_states(
            sequences, prefix, batch_size=batch_size, device=device
        )
        reports = [
            TokenReport(
                tokens_used=min(len(ids), limit),
                tokens_total=len(ids),
                token_limit=limit,
                dropped_words=self._words(ids[limit:]),
            )
            for ids in full
        ]
        return [state[len(prefix) :] for state in states], reports

    def _truncated(self, text: str, limit: int) -> list[int]:
        """Ids cut by the tokenizer itself, which keeps the special tokens it puts at the end."""
        cut = self.tokenizer(text, add_special_tokens=True, truncation=True, max_length=limit)
        return list(cut["input_ids"])

    def _report(self, lead: str, text: str, full: list[int], used: int, limit: int) -> TokenReport:
        """Counts of user tokens: those that come after what the lead alone shares with the whole."""
        shared = len(_common_prefix([self._ids(lead, special=True), full]))
        extra = len(self._ids("", special=True)) - len(
            _common_prefix([self._ids("", special=True), full])
        )
        del text
        return TokenReport(
            tokens_used=max(0, used - shared - extra),
            tokens_total=max(0, len(full) - shared - extra),
            token_limit=limit - shared - extra,
            dropped_words=self._words(full[used:]),
        )

    def _words(self, ids: list[int]) -> tuple[str, ...]:
        text = self.tokenizer.decode(ids, skip_special_tokens=True) if ids else ""
        return tuple(text.split()[:_DROPPED_WORDS])

    def _pack(self, rows: list[torch.Tensor], reports: list[TokenReport]) -> TextEncoding:
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
            raise ValueError(
                "the text encoder gave values that are not finite: "
                f"run it in another dtype than {embeds.dtype} (bfloat16 or float32)"
            )
        return TextEncoding(embeds, mask, tuple(reports))


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


def _common_prefix(sequences: Sequence[Sequence[int]]) -> list[int]:
    """The longest list of ids that all sequences begin with."""
    shared: list[int] = []
    for column in zip(*sequences, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return shared
