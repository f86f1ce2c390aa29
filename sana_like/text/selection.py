"""Which tokens of a prompt are read, and which positions of the features are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sana_like.text.report import TokenReport
from sana_like.text.settings import TextSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PromptReading", "PublishedReading", "Reading"]

_DROPPED_WORDS = 8


@dataclass(frozen=True)
class Reading:
    """One prompt, ready for the decoder."""

    ids: tuple[int, ...]
    """Everything the decoder reads."""
    shared: int
    """How many of the first ids are the same for all prompts read after the instruction."""
    kept: tuple[int, ...]
    """Positions whose features make the encoding, in order."""
    report: TokenReport


class _Rule:
    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: TextSettings) -> None:
        self.tokenizer = tokenizer
        self.settings = settings

    def ids(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text, with or without the tokens that the tokenizer puts around it."""
        return list(self.tokenizer(text, add_special_tokens=special)["input_ids"])

    def report(self, total: int, used: int, limit: int, dropped: list[int]) -> TokenReport:
        text = str(self.tokenizer.decode(dropped, skip_special_tokens=True)) if dropped else ""
        return TokenReport(used, total, limit, tuple(text.split()[:_DROPPED_WORDS]))


class PublishedReading(_Rule):
    """SANA's rule (section 2.3.2 and the released code).

    Instruction and prompt are read as one text of at most ``n + L - 2`` tokens, n being those of
    the instruction alone; position 0 and the last ``L - 1`` positions are kept. As the text counts
    as padded to its full length, the window begins at position ``n - 1``, the instruction's last
    token. The two places are the first token's, and that of the space which ends the instruction
    and, in Gemma's vocabulary, merges into the prompt.

    Negative prompts and the empty prompt, which is what captions are dropped to in training, are
    read without instruction and kept whole.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: TextSettings) -> None:
        super().__init__(tokenizer, settings)
        self._instruction = settings.instruction or ""
        self._instruction_ids = self.ids(self._instruction)
        self._around = len(self.ids(""))

    def read(self, text: str, *, negative: bool) -> Reading:
        """Read one prompt, already stripped and lower-cased where the settings say so."""
        length = self.settings.max_sequence_length
        bare = negative or not text or not self._instruction
        lead, lead_ids = ("", self.ids("")) if bare else (self._instruction, self._instruction_ids)
        limit = length if bare else len(lead_ids) + length - 2
        full = self.ids(lead + text)
        ids = full if len(full) <= limit else self._cut(lead + text, limit)
        common = _common_prefix(lead_ids, full)
        # Tokens of the lead alone that come after the prompt, where the tokenizer adds such.
        closing = self._around - _common_prefix(self.ids(""), full)
        extra = common + closing
        dropped = full[len(ids) - closing : len(full) - closing] if len(ids) < len(full) else []
        window = 1 if bare else limit - (length - 1)
        shared = 0 if bare else len(lead_ids) - 1
        return Reading(
            ids=tuple(ids),
            shared=shared if common >= shared and len(ids) > shared else 0,
            kept=(0, *range(window, len(ids))),
            report=self.report(
                max(0, len(full) - extra), max(0, len(ids) - extra), limit - extra, dropped
            ),
        )

    def _cut(self, text: str, limit: int) -> list[int]:
        """Ids cut by the tokenizer itself, which keeps the tokens that it puts at the end."""
        encoded = self.tokenizer(text, add_special_tokens=True, truncation=True, max_length=limit)
        return list(encoded["input_ids"])


class PromptReading(_Rule):
    """Our own rule: ``start instruction prompt``, of which the instruction's last token and the
    prompt are kept.

    The first token of a decoder's input collects attention and has a norm far above the others; it
    is dropped with the instruction. The instruction's last token is the same for all prompts: it is
    what an empty prompt consists of, and gives cross-attention a place that says nothing. No mark
    follows the prompt: its last token has read all of it, and a mark's features hardly vary.
    Negative prompts are read like others.

    Raises:
        ValueError: neither an instruction nor a start token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: TextSettings) -> None:
        super().__init__(tokenizer, settings)
        lead = self.ids(settings.instruction, special=False) if settings.instruction else []
        start = tokenizer.bos_token_id
        self._lead = lead if start is None else [start, *lead]
        if not self._lead:
            raise ValueError(
                "selection 'prompt' needs an instruction or a tokenizer with a start token"
            )

    def read(self, text: str, *, negative: bool) -> Reading:
        """Read one prompt, already stripped and lower-cased where the settings say so."""
        del negative
        limit = self.settings.max_sequence_length - 1
        # The leading space makes the first word the token that it is inside a sentence.
        full = self._typed_ids(f" {text}") if text else []
        ids = (*self._lead, *full[:limit])
        last = len(self._lead) - 1
        return Reading(
            ids=ids,
            shared=last,
            kept=tuple(range(last, len(ids))),
            report=self.report(len(full), min(len(full), limit), limit, full[limit:]),
        )

    def _typed_ids(self, text: str) -> list[int]:
        """Ids of a text in which the spelling of a special token is just letters."""
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(encoded["input_ids"])


def _common_prefix(first: list[int], second: list[int]) -> int:
    """How many ids two lists begin with in common."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
