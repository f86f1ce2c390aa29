"""What holds for every selection rule and every decoder."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import LlamaForCausalLM

from sana_like.text import PromptEncoder, PromptTruncatedWarning, TextSettings

INSTRUCTION = "Tell what the picture shows.\n- add colours\nUser Prompt: "
PUBLISHED = TextSettings(instruction=INSTRUCTION, max_sequence_length=16)
PROMPT = TextSettings(
    instruction="Tell what the picture shows:",
    max_sequence_length=16,
    hidden_layer=2,
    rms_normalize=True,
    selection="prompt",
)
BARE = TextSettings(max_sequence_length=16)


@pytest.fixture(params=["gemma", "llama"])
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=[PUBLISHED, PROMPT, BARE], ids=["published", "prompt", "bare"])
def settings(request) -> TextSettings:
    return request.param


@pytest.fixture
def encoder(gemma_like_tokenizer, model, settings) -> PromptEncoder:
    return PromptEncoder(gemma_like_tokenizer, model, settings)


def _whole_pass(encoder: PromptEncoder, prompt: str) -> torch.Tensor:
    """The same features from one plain pass of the decoder over everything that is read."""
    reading = encoder.read(prompt)
    output = encoder.text_encoder(
        input_ids=torch.tensor([reading.ids]), output_hidden_states=True, use_cache=False
    )
    layer = encoder.settings.hidden_layer
    states = output.last_hidden_state if layer is None else output.hidden_states[layer]
    states = states[0, list(reading.kept)]
    if encoder.settings.rms_normalize:
        states = states / states.square().mean(-1, keepdim=True).sqrt()
    return states


def test_equals_one_pass_without_kept_prefix(encoder):
    for prompt in ["a red cat", "table", ""]:
        encoding = encoder.encode([prompt])
        expected = _whole_pass(encoder, prompt)
        torch.testing.assert_close(
            encoding.embeds[0, : len(expected)], expected, atol=5e-5, rtol=1e-4
        )
        assert int(encoding.mask.sum()) == len(expected)


def test_alone_and_in_a_batch(encoder):
    prompts = ["a", "a red cat sleeping on the table", "", "the cat", "red " * 9]
    together = encoder.encode(prompts)
    split = encoder.encode(prompts, batch_size=2)
    for row, prompt in enumerate(prompts):
        alone = encoder.encode([prompt])
        assert torch.equal(alone.mask[0], together.mask[row])
        torch.testing.assert_close(alone.embeds[0], together.embeds[row], atol=1e-4, rtol=0)
        torch.testing.assert_close(split.embeds[row], together.embeds[row], atol=1e-4, rtol=0)
        assert together.reports[row] == alone.reports[0]


def test_empty_and_blank_prompts_are_the_unconditional_text(encoder):
    empty = encoder.encode([""])
    assert int(empty.mask.sum()) >= 1
    assert torch.isfinite(empty.embeds).all()
    assert empty.reports[0].tokens_total == 0
    assert torch.equal(empty.embeds, encoder.encode(["  \n "]).embeds)
    assert torch.equal(empty.embeds, encoder.encode([""], negative=True).embeds)
    assert not torch.allclose(empty.embeds, encoder.encode(["a cat"]).embeds)


def test_no_prompts(encoder):
    encoding = encoder.encode([])
    assert encoding.embeds.shape == (0, 16, encoder.width)
    assert encoding.mask.shape == (0, 16)


@pytest.mark.parametrize("prompts", [None, [None], ["a", 3], "a cat", [["a"]]])
def test_what_is_not_a_list_of_strings_is_refused(encoder, prompts):
    with pytest.raises(ValueError, match="'' stands for no prompt"):
        encoder.encode(prompts)


def test_a_sequence_ends_where_the_prompt_ends(encoder):
    """Adding words changes nothing before them: features are causal."""
    short, long = encoder.encode(["a red cat"]), encoder.encode(["a red cat on the table"])
    count = int(short.mask.sum())
    torch.testing.assert_close(short.embeds[0, :count], long.embeds[0, :count], atol=5e-5, rtol=0)


@pytest.mark.parametrize(
    "settings", [PUBLISHED, PROMPT], ids=["published", "prompt"], indirect=True
)
def test_instruction_changes_the_features_and_costs_no_room(gemma_like_tokenizer, model, settings):
    from dataclasses import replace

    longer = replace(settings, instruction="colours add. " + settings.instruction)
    one = PromptEncoder(gemma_like_tokenizer, model, settings).encode(["a red cat"])
    other = PromptEncoder(gemma_like_tokenizer, model, longer).encode(["a red cat"])
    assert torch.equal(one.mask, other.mask)
    assert one.reports == other.reports
    assert not torch.allclose(one.embeds, other.embeds, atol=1e-2)


def test_rms_normalised_features_have_unit_mean_square(gemma_like_tokenizer, llama):
    encoding = PromptEncoder(gemma_like_tokenizer, llama, PROMPT).encode(["a red cat"])
    square = encoding.embeds[encoding.mask].square().mean(-1)
    torch.testing.assert_close(square, torch.ones_like(square), atol=1e-3, rtol=0)


def test_special_tokens_that_a_user_types_are_letters(gemma_like_tokenizer, llama):
    encoder = PromptEncoder(gemma_like_tokenizer, llama, PROMPT)
    end = gemma_like_tokenizer.eos_token_id
    assert end not in encoder.read("a <eos> cat").ids
    assert end in gemma_like_tokenizer("a <eos> cat")["input_ids"]


def test_negative_prompts_skip_the_published_instruction_only(gemma_like_tokenizer, llama):
    published = PromptEncoder(gemma_like_tokenizer, llama, PUBLISHED)
    own = PromptEncoder(gemma_like_tokenizer, llama, PROMPT)
    assert not torch.allclose(
        published.encode(["a cat"]).embeds, published.encode(["a cat"], negative=True).embeds
    )
    assert torch.equal(own.encode(["a cat"]).embeds, own.encode(["a cat"], negative=True).embeds)


def test_a_causal_language_model_counts_as_its_decoder(gemma_like_tokenizer, llama):
    head = LlamaForCausalLM(llama.config).eval()
    head.model.load_state_dict(llama.state_dict())
    with_head = PromptEncoder(gemma_like_tokenizer, head, PUBLISHED)
    without = PromptEncoder(gemma_like_tokenizer, llama, PUBLISHED)
    assert torch.equal(with_head.encode(["a cat"]).embeds, without.encode(["a cat"]).embeds)
    assert with_head.fingerprint == without.fingerprint


def test_changed_weights_are_seen_after_forget(gemma_like_tokenizer, llama):
    import copy

    changed = copy.deepcopy(llama)
    encoder = PromptEncoder(gemma_like_tokenizer, changed, PROMPT)
    before = encoder.encode(["a cat"]).embeds
    changed.layers[0].mlp.up_proj.weight.mul_(1.5)
    encoder.forget()
    fresh = PromptEncoder(gemma_like_tokenizer, changed, PROMPT).encode(["a cat"]).embeds
    after = encoder.encode(["a cat"]).embeds
    assert torch.equal(after, fresh)
    assert not torch.allclose(after, before)
    assert encoder.fingerprint != PromptEncoder(gemma_like_tokenizer, llama, PROMPT).fingerprint


def test_another_dtype_is_noticed_without_forget(gemma_like_tokenizer, llama):
    import copy

    cast = copy.deepcopy(llama)
    encoder = PromptEncoder(gemma_like_tokenizer, cast, PROMPT)
    encoder.encode(["a cat"])
    cast.to(torch.bfloat16)
    fresh = PromptEncoder(gemma_like_tokenizer, cast, PROMPT).encode(["a cat"]).embeds
    again = encoder.encode(["a cat"]).embeds
    assert again.dtype == torch.bfloat16
    assert torch.equal(again, fresh)


def test_features_can_be_trained_on(gemma_like_tokenizer, llama):
    embeds = PromptEncoder(gemma_like_tokenizer, llama, PROMPT).encode(["a cat"]).embeds
    weight = torch.ones(embeds.shape[-1], requires_grad=True)
    (embeds * weight).sum().backward()
    assert weight.grad is not None


def test_values_that_are_not_finite_are_refused(gemma_like_tokenizer, llama):
    import copy

    broken = copy.deepcopy(llama)
    broken.embed_tokens.weight.fill_(float("inf"))
    with pytest.raises(ValueError, match="not finite"):
        PromptEncoder(gemma_like_tokenizer, broken, PUBLISHED).encode(["a cat"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"selection": "last"}, "selection"),
        ({"max_sequence_length": 1}, "max_sequence_length"),
        ({"hidden_layer": -1}, "hidden_layer"),
        ({"hidden_layer": 3.0}, "hidden_layer"),
        ({"max_sequence_length": "77"}, "max_sequence_length"),
        ({"max_sequence_length": True}, "max_sequence_length"),
        ({"instruction": 7}, "instruction"),
        ({"lowercase": "yes"}, "lowercase"),
    ],
)
def test_settings_out_of_range_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        TextSettings(**values)


def test_settings_survive_json_and_refuse_unknown_keys():
    assert TextSettings.from_dict(PROMPT.to_dict()) == PROMPT
    with pytest.raises(ValueError, match="colour"):
        TextSettings.from_dict({"colour": 1})


def test_a_layer_that_is_not_there_is_refused(gemma_like_tokenizer, llama):
    with pytest.raises(ValueError, match="3 layers"):
        PromptEncoder(gemma_like_tokenizer, llama, TextSettings(hidden_layer=4))
    with pytest.raises(ValueError, match="transformers"):
        PromptEncoder(gemma_like_tokenizer, torch.nn.Linear(2, 2), PUBLISHED)


# Long prompts: one token per word, 600 of them; the limit is 300.


@pytest.fixture(scope="module")
def word_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<bos>", "<eos>", "<unk>", "Show", "this", ":"]
    words += [f"w{i}" for i in range(40)] + ["alpha", "beta"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )


def _marked(place: int | None = None) -> str:
    words = [f"w{i % 40}" for i in range(600)]
    for position in (10, 290, 310, 590):
        words[position] = "beta" if position == place else "alpha"
    return " ".join(words)


@pytest.mark.parametrize("instruction", [None, "Show this : " * 30])
@pytest.mark.parametrize("selection", ["published", "prompt"])
def test_long_prompts_are_cut_at_the_limit_of_user_text(
    word_tokenizer, llama, instruction, selection
):
    settings = TextSettings(
        instruction=instruction, max_sequence_length=300, selection=selection, lowercase=True
    )
    encoder = PromptEncoder(word_tokenizer, llama, settings)
    with pytest.warns(PromptTruncatedWarning, match="of its 600 tokens were used"):
        base = encoder.encode([_marked()])
    report = base.reports[0]
    assert report.truncated
    assert 298 <= report.tokens_used == report.token_limit <= 299
    words = _marked().split()
    assert report.dropped_words == tuple(words[report.tokens_used : report.tokens_used + 8])
    assert words[report.tokens_used] in report.message()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PromptTruncatedWarning)
        for place, seen in [(10, True), (290, True), (310, False), (590, False)]:
            changed = encoder.encode([_marked(place)])
            assert torch.equal(changed.mask, base.mask)
            assert torch.equal(changed.embeds, base.embeds) is not seen
        mixed = encoder.encode(["w1 w2", _marked()])
    assert not mixed.reports[0].truncated
    alone = encoder.encode(["w1 w2"])
    torch.testing.assert_close(mixed.embeds[0], alone.embeds[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(mixed.embeds[1], base.embeds[0], atol=1e-4, rtol=0)


def test_a_prompt_that_just_fits_is_not_cut(word_tokenizer, llama):
    encoder = PromptEncoder(
        word_tokenizer, llama, TextSettings("Show this :", 16, selection="prompt")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoding = encoder.encode([" ".join(["w1"] * 15)])
    assert encoding.mask.all()
    with pytest.warns(PromptTruncatedWarning, match="'w3'"):
        encoder.encode([" ".join(["w1"] * 15 + ["w3"])])
