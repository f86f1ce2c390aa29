"""The published rule, against what diffusers' own pipeline makes of the same parts."""

from __future__ import annotations

import copy

import pytest
import torch
from diffusers import SanaPipeline

from sana_like.text import PromptEncoder, TextSettings, published_settings

INSTRUCTION = "Tell what the picture shows.\n- add colours\nUser Prompt: "
LENGTH = 12
PROMPTS = [
    "a red cat",
    "A RED cat sleeping on the table under the red table",
    "  the Table ",
    "cat " * 40,
]


@pytest.fixture
def settings() -> TextSettings:
    return TextSettings(instruction=INSTRUCTION, max_sequence_length=LENGTH, lowercase=True)


@pytest.fixture
def encoder(gemma_like_tokenizer, gemma, settings) -> PromptEncoder:
    return PromptEncoder(gemma_like_tokenizer, gemma, settings)


def _diffusers(tokenizer, model, prompt, negative, instruction=INSTRUCTION):
    pipe = SanaPipeline(
        tokenizer=copy.deepcopy(tokenizer),
        text_encoder=model,
        vae=None,
        transformer=None,
        scheduler=None,
    )
    return pipe.encode_prompt(
        prompt,
        negative_prompt=negative,
        device=torch.device("cpu"),
        max_sequence_length=LENGTH,
        complex_human_instruction=instruction.split("\n") if instruction else None,
    )


@pytest.mark.filterwarnings("ignore::sana_like.text.report.PromptTruncatedWarning")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_equals_diffusers(encoder, gemma_like_tokenizer, gemma, prompt):
    embeds, mask, negative, negative_mask = _diffusers(
        gemma_like_tokenizer, gemma, prompt, "a Table"
    )
    ours = encoder.encode([prompt])
    assert torch.equal(ours.mask, mask.bool())
    torch.testing.assert_close(ours.embeds[ours.mask], embeds[mask.bool()], atol=2e-5, rtol=1e-4)
    ours = encoder.encode(["a Table"], negative=True)
    assert torch.equal(ours.mask, negative_mask.bool())
    torch.testing.assert_close(
        ours.embeds[ours.mask], negative[negative_mask.bool()], atol=2e-5, rtol=1e-4
    )


def test_without_instruction_equals_diffusers(gemma_like_tokenizer, gemma, settings):
    plain = TextSettings(max_sequence_length=LENGTH, lowercase=True)
    embeds, mask, _, _ = _diffusers(gemma_like_tokenizer, gemma, "a red cat", "", instruction="")
    ours = PromptEncoder(gemma_like_tokenizer, gemma, plain).encode(["a red cat"])
    assert torch.equal(ours.mask, mask.bool())
    torch.testing.assert_close(ours.embeds[ours.mask], embeds[mask.bool()], atol=2e-5, rtol=1e-4)


def test_window_holds_first_token_last_instruction_token_and_prompt(encoder, gemma_like_tokenizer):
    reading = encoder.read("a red cat")
    whole = gemma_like_tokenizer(INSTRUCTION + "a red cat")["input_ids"]
    assert list(reading.ids) == whole
    lead = len(gemma_like_tokenizer(INSTRUCTION)["input_ids"])
    # The instruction's last space merges into the prompt, which therefore begins in its place.
    assert gemma_like_tokenizer.convert_ids_to_tokens(whole[lead - 1]) == "▁a"
    assert reading.kept == (0, *range(lead - 1, len(whole)))


def test_padding_is_zero_and_unmasked(encoder):
    encoding = encoder.encode(["a red cat"])
    assert encoding.embeds.shape == (1, LENGTH, 32)
    assert encoding.embeds.dtype == torch.float32
    assert not encoding.mask.all()
    assert torch.count_nonzero(encoding.embeds[~encoding.mask]) == 0


@pytest.mark.filterwarnings("ignore::sana_like.text.report.PromptTruncatedWarning")
def test_tokenizer_is_left_as_it_was(encoder, gemma_like_tokenizer):
    before = gemma_like_tokenizer.padding_side
    encoder.encode(PROMPTS)
    assert gemma_like_tokenizer.padding_side == before == "left"
    # A cut prompt must not leave truncation switched on for whoever uses the tokenizer next.
    assert len(gemma_like_tokenizer("cat " * 40)["input_ids"]) > LENGTH + 20


def test_lower_casing_is_a_setting(gemma_like_tokenizer, gemma, settings):
    as_typed = TextSettings(instruction=INSTRUCTION, max_sequence_length=LENGTH, lowercase=False)
    lowered = PromptEncoder(gemma_like_tokenizer, gemma, settings)
    typed = PromptEncoder(gemma_like_tokenizer, gemma, as_typed)
    assert torch.equal(lowered.encode(["A Cat"]).embeds, lowered.encode(["a cat"]).embeds)
    upper, lower = typed.encode(["A Cat"]).embeds, typed.encode(["a cat"]).embeds
    assert not torch.allclose(upper, lower, atol=1e-2)
    assert torch.equal(lower, lowered.encode(["a cat"]).embeds)
    assert settings.to_dict()["lowercase"] is True


def test_an_end_token_of_the_tokenizer_survives_the_cut(gemma_like_tokenizer, gemma, settings):
    from tokenizers import processors

    closing = copy.deepcopy(gemma_like_tokenizer)
    closing.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    encoder = PromptEncoder(closing, gemma, settings)
    reading = encoder.read("cat " * 40)
    assert reading.ids[-1] == closing.eos_token_id
    report = reading.report
    assert report.tokens_used == report.token_limit < report.tokens_total
    assert set(report.dropped_words) == {"cat"}


def test_published_settings_hold_the_instruction_of_diffusers():
    import inspect

    default = inspect.signature(SanaPipeline.__call__).parameters["complex_human_instruction"]
    settings = published_settings()
    assert settings.instruction.split("\n") == default.default
    assert (settings.max_sequence_length, settings.lowercase) == (300, True)
    assert settings.selection == "published"
    assert settings.hidden_layer is None
    assert not settings.rms_normalize
