"""A GGUF file made here gives back the model and tokenizer that it was made from."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaModel

from sana_like.text.gguf_reader import (
    GGUFError,
    llama_config,
    llama_state_dict,
    open_gguf,
    tokenizer_json,
)

TEXTS = ["a red apple", "Apple 2026!", "  two  spaces\n\tand a tab", "don't", "ÄÖ 🍎 苹果", ""]


def test_config(tiny_gguf):
    config = llama_config(open_gguf(tiny_gguf.path))
    expected = tiny_gguf.model.config
    for key in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
    ):
        assert config[key] == getattr(expected, key), key
    assert config["rope_theta"] == 5000.0
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    assert config["tie_word_embeddings"]


def test_state_dict_is_equal_and_so_is_a_forward_pass(tiny_gguf):
    reader = open_gguf(tiny_gguf.path)
    state = llama_state_dict(reader, num_layers=3)
    expected = tiny_gguf.model.state_dict()
    assert set(state) == set(expected)
    for key, value in expected.items():
        assert torch.equal(state[key], value), key
    arguments = llama_config(reader)
    rope = {"rope_type": "default", "rope_theta": arguments.pop("rope_theta")}
    model = LlamaModel(LlamaConfig(rope_parameters=rope, **arguments)).eval()
    model.load_state_dict(state)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids)[0], tiny_gguf.model(ids)[0])


def test_the_file_holds_other_rows_than_the_model(tiny_gguf):
    """The comparison above means something only if the file is permuted."""
    reader = open_gguf(tiny_gguf.path)
    (query,) = [tensor for tensor in reader.tensors if tensor.name == "blk.0.attn_q.weight"]
    model = tiny_gguf.model.layers[0].self_attn.q_proj.weight
    assert not torch.equal(torch.from_numpy(query.data.copy()), model)


def test_only_the_layers_asked_for_are_read(tiny_gguf):
    state = llama_state_dict(open_gguf(tiny_gguf.path), num_layers=1, dtype=torch.bfloat16)
    assert len(state) == 2 + 9
    assert {key.split(".")[1] for key in state if key.startswith("layers")} == {"0"}
    assert all(value.dtype == torch.bfloat16 for value in state.values())
    with pytest.raises(GGUFError, match="expected 38"):
        llama_state_dict(open_gguf(tiny_gguf.path), num_layers=4)


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer(tiny_gguf, text):
    tokenizer = Tokenizer.from_str(tokenizer_json(open_gguf(tiny_gguf.path)))
    ids = tokenizer.encode(text).ids
    assert ids == tiny_gguf.tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_recognised(tiny_gguf):
    tokenizer = Tokenizer.from_str(tokenizer_json(open_gguf(tiny_gguf.path)))
    assert tokenizer.encode("<|im_start|>a").ids[0] == 1
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""


def test_what_is_no_gguf_file_is_refused(tmp_path, tiny_gguf):
    with pytest.raises(GGUFError, match="no file"):
        open_gguf(tmp_path / "none.gguf")
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<!DOCTYPE html>" * 10)
    with pytest.raises(GGUFError, match="not a complete GGUF file"):
        open_gguf(page)
    data = tiny_gguf.path.read_bytes()
    for name, size in [("header.gguf", 700), ("half.gguf", len(data) // 2), ("empty.gguf", 0)]:
        cut = tmp_path / name
        cut.write_bytes(data[:size])
        with pytest.raises(GGUFError, match=name):
            llama_state_dict(open_gguf(cut), num_layers=3)


def test_other_architectures_and_tensors_are_refused(tmp_path):
    import gguf
    import numpy as np

    for architecture, tensor, message in [
        ("bert", "token_embd.weight", "'bert'"),
        ("llama", "blk.0.attn_gate.weight", "unknown tensor"),
    ]:
        path = tmp_path / f"{architecture}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(1)
        writer.add_context_length(8)
        writer.add_embedding_length(4)
        writer.add_feed_forward_length(4)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(4)
        writer.add_tensor(tensor, np.zeros((4, 4), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(GGUFError, match=message):
            llama_state_dict(open_gguf(path), num_layers=1)
