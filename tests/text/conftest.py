"""A tokenizer in Gemma's manner and tiny random decoders, all made here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    Gemma2Config,
    Gemma2Model,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
)

INSTRUCTION = "Tell what the picture shows.\n- add colours\nUser Prompt: "
WORDS = "a red cat sleeping on the table Tell what picture shows add colours User Prompt under café"


@pytest.fixture(scope="session")
def gemma_like_tokenizer() -> PreTrainedTokenizerFast:
    """BPE in which a space belongs to the word after it, with a start token and no end token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    letters = sorted(set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789▁\n.,:-é"))
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<eos>", "<bos>", "<unk>"],
        initial_alphabet=letters,
        show_progress=False,
    )
    numbers = [f"word{i}" for i in range(10)]
    tokenizer.train_from_iterator([f" {WORDS}", INSTRUCTION, *numbers, WORDS] * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    tokenizer.decoder = decoders.Replace("▁", " ")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="left",
    )


_SHAPE = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.fixture(scope="session")
def gemma() -> Gemma2Model:
    """Three layers: sliding and full attention alternate, with soft-capping."""
    torch.manual_seed(0)
    model = Gemma2Model(Gemma2Config(**_SHAPE, sliding_window=4096, initializer_range=0.3))
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def llama() -> LlamaModel:
    torch.manual_seed(1)
    model = LlamaModel(LlamaConfig(**_SHAPE, initializer_range=0.3))
    return model.eval().requires_grad_(False)


BYTE_TEXT = ["a red apple", "apple 12", "the apple's colour\n", "ein Äpfel 🍎"]


@dataclass
class TinyGGUF:
    """A GGUF file as llama.cpp's converter writes it, and the parts that it was made from."""

    path: Path
    model: LlamaModel
    tokenizer: Tokenizer


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory) -> TinyGGUF:
    """Three layers, grouped queries; the feed-forward weights are Q8_0 and Q4_1."""
    torch.manual_seed(2)
    tokenizer = _byte_level_bpe()
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        initializer_range=0.2,
    )
    model = LlamaModel(config).eval().requires_grad_(False)
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    _write_gguf(path, model, tokenizer)
    return TinyGGUF(path, model, tokenizer)


def _byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=288,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(BYTE_TEXT * 4, trainer)
    return tokenizer


def _write_gguf(path: Path, model: LlamaModel, tokenizer: Tokenizer) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(128)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    state = json.loads(tokenizer.to_str())
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i < 3 else 1 for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    for name, weight in model.state_dict().items():
        _add_tensor(writer, name, weight, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, weight: torch.Tensor, config: LlamaConfig
) -> None:
    parts = name.split(".")
    kind = parts[-2]
    prefix = f"blk.{parts[1]}." if parts[0] == "layers" else ""
    values = weight.numpy()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if kind in heads:
        # What the converter does: row d of a head's first half goes beside row d of its second.
        rows = [
            head * 16 + half * 8 + d
            for head in range(heads[kind])
            for d in range(8)
            for half in range(2)
        ]
        values = np.ascontiguousarray(values[rows])
    packed = {
        "up_proj": gguf.GGMLQuantizationType.Q8_0,
        "gate_proj": gguf.GGMLQuantizationType.Q4_1,
    }.get(kind)
    target = f"{prefix}{_GGUF_NAMES[kind]}.weight"
    if packed is None:
        writer.add_tensor(target, values)
        return
    data = gguf.quants.quantize(values, packed)
    writer.add_tensor(target, data, raw_dtype=packed)
    # The model kept for comparison has the values that the file can express.
    weight.copy_(torch.from_numpy(gguf.quants.dequantize(data, packed)))
