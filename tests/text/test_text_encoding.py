"""Features in memory and in a file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sana_like.text import PromptEncoder, TextEncoding, TextEncodingError, TextSettings

SETTINGS = TextSettings(max_sequence_length=8)


@pytest.fixture
def encoder(gemma_like_tokenizer, llama) -> PromptEncoder:
    return PromptEncoder(gemma_like_tokenizer, llama, SETTINGS)


@pytest.fixture
def encoding(encoder) -> TextEncoding:
    return encoder.encode(["a cat", "", "the red table"])


def test_round_trip_needs_no_encoder(tmp_path, encoding, encoder):
    path = tmp_path / "text.safetensors"
    encoding.save(path, settings=SETTINGS, fingerprint=encoder.fingerprint)
    loaded = TextEncoding.load(path, settings=SETTINGS)
    assert torch.equal(loaded.embeds, encoding.embeds)
    assert torch.equal(loaded.mask, encoding.mask)
    TextEncoding.load(path, settings=SETTINGS, fingerprint=encoder.fingerprint)
    assert [entry.name for entry in tmp_path.iterdir()] == ["text.safetensors"]


def test_other_settings_or_encoder_are_refused(tmp_path, encoding, encoder, gemma_like_tokenizer):
    path = tmp_path / "text.safetensors"
    encoding.save(path, settings=SETTINGS, fingerprint=encoder.fingerprint)
    with pytest.raises(TextEncodingError, match="lowercase differ"):
        TextEncoding.load(path, settings=replace(SETTINGS, lowercase=True))
    with pytest.raises(TextEncodingError, match="another text encoder"):
        TextEncoding.load(path, settings=SETTINGS, fingerprint="0" * 16)


def test_damaged_and_foreign_files_are_refused(tmp_path, encoding, encoder):
    from safetensors.torch import save_file

    path = tmp_path / "text.safetensors"
    encoding.save(path, settings=SETTINGS, fingerprint=encoder.fingerprint)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TextEncodingError, match="cannot read"):
        TextEncoding.load(path, settings=SETTINGS)
    with pytest.raises(TextEncodingError, match="cannot read"):
        TextEncoding.load(tmp_path / "none.safetensors", settings=SETTINGS)
    save_file({"embeds": encoding.embeds.clone()}, tmp_path / "foreign.safetensors")
    with pytest.raises(TextEncodingError, match="not a file of text features"):
        TextEncoding.load(tmp_path / "foreign.safetensors", settings=SETTINGS)


def test_rows_trimming_and_moving(encoding):
    assert len(encoding) == 3
    pair = encoding[[0, 0, 2]]
    assert torch.equal(pair.embeds[1], encoding.embeds[0])
    assert pair.reports[2] == encoding.reports[2]
    assert len(encoding[1:]) == 2
    trimmed = encoding[:2].trimmed()
    assert trimmed.embeds.shape[1] == int(encoding.mask[:2].sum(1).max())
    assert encoding.to(dtype=torch.bfloat16).embeds.dtype == torch.bfloat16


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(TextEncodingError, match="do not fit"):
        TextEncoding(torch.zeros(1, 4, 2), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(TextEncodingError, match="dtype"):
        TextEncoding(torch.zeros(1, 4, 2), torch.ones(1, 4))


def test_fingerprint_depends_on_weights_and_tokenizer_not_on_dtype(
    encoder, gemma, llama, gemma_like_tokenizer
):
    import copy

    half = PromptEncoder(gemma_like_tokenizer, copy.deepcopy(llama).bfloat16(), SETTINGS)
    assert half.fingerprint == encoder.fingerprint
    other = PromptEncoder(gemma_like_tokenizer, gemma, SETTINGS)
    assert other.fingerprint != encoder.fingerprint
