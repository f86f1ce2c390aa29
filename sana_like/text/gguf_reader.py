"""Reading of a Llama-shaped decoder and its tokenizer from one GGUF file.

Format: the GGUF specification of the ggml project. Two things differ from the layout of
``transformers``: names (a table below), and the order of the rows of the query and key
projections. ggml rotates neighbouring pairs of channels, ``transformers`` rotates the two halves of
a head against each other; the converter to GGUF therefore interleaves the halves, and this reader
undoes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gguf import GGUFReader

__all__ = ["GGUFError", "llama_config", "llama_state_dict", "open_gguf", "tokenizer_json"]

_BLOCK_KEYS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3
"""``tokenizer.ggml.token_type`` of special tokens."""


class GGUFError(ValueError):
    """The file is not a GGUF file, is cut short, or holds something this reader does not know."""


def open_gguf(path: Path) -> GGUFReader:
    """Open a GGUF file; tensors are mapped, not read.

    Raises:
        GGUFError: no readable GGUF file of the Llama architecture at ``path``.
    """
    from gguf import GGUFReader

    if not path.is_file():
        raise GGUFError(f"no file {path}")
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise GGUFError(f"{path} is not a complete GGUF file: {error}") from error
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise GGUFError(f"{path} holds a {architecture!r} model, this reader knows 'llama' only")
    return reader


def llama_config(reader: GGUFReader) -> dict[str, Any]:
    """Arguments of ``transformers.LlamaConfig`` that describe the file."""
    heads = int(_field(reader, "llama.attention.head_count"))
    vocabulary = _field(reader, "llama.vocab_size", None)
    if vocabulary is None:
        vocabulary = len(_field(reader, "tokenizer.ggml.tokens"))
    return {
        "vocab_size": int(vocabulary),
        "hidden_size": int(_field(reader, "llama.embedding_length")),
        "intermediate_size": int(_field(reader, "llama.feed_forward_length")),
        "num_hidden_layers": int(_field(reader, "llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_field(reader, "llama.attention.head_count_kv", heads)),
        "max_position_embeddings": int(_field(reader, "llama.context_length")),
        # The file stores single precision; 1e-5 comes back as 9.99999974e-06.
        "rms_norm_eps": float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(_field(reader, "llama.rope.freq_base", 10000.0)),
        "bos_token_id": _token_id(reader, "bos"),
        "eos_token_id": _token_id(reader, "eos"),
        "pad_token_id": _token_id(reader, "padding"),
        "tie_word_embeddings": "output.weight" not in {tensor.name for tensor in reader.tensors},
    }


def llama_state_dict(
    reader: GGUFReader, *, num_layers: int, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Tensors of ``transformers.LlamaModel`` with its first ``num_layers`` layers, dequantised.

    The language-model head and deeper layers are left out; quantised types are expanded in fp32
    before they are cast to ``dtype``.

    Raises:
        GGUFError: a tensor is missing, unknown, or of a type ``gguf`` cannot expand.
    """
    from gguf.quants import dequantize

    config = llama_config(reader)
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    state: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        key = _model_key(tensor.name, num_layers)
        if key is None:
            continue
        try:
            values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        except NotImplementedError as error:
            raise GGUFError(f"{tensor.name}: {error}") from error
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = _unpermute(values, heads[part])
        state[key] = values.to(dtype)
    expected = 2 + num_layers * len(_BLOCK_KEYS)
    if len(state) != expected:
        raise GGUFError(f"{len(state)} tensors for {num_layers} layers, expected {expected}")
    return state


def tokenizer_json(reader: GGUFReader) -> str:
    """The file's byte-level BPE tokenizer as the text of a ``tokenizer.json``.

    Raises:
        GGUFError: the file's tokenizer is of another kind.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (_field(reader, "tokenizer.ggml.model"), _field(reader, "tokenizer.ggml.pre", "gpt-2"))
    if kind not in {("gpt2", "smollm"), ("gpt2", "gpt-2")}:
        raise GGUFError(
            f"tokenizer {kind} is unknown; known: ('gpt2', 'smollm'), ('gpt2', 'gpt-2')"
        )
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(line.split(" ", 1)) for line in _field(reader, "tokenizer.ggml.merges")]
    types: list[int] = _field(reader, "tokenizer.ggml.token_type", [])
    model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    # SmolLM splits numbers into digits first, GPT-2 does not.
    steps = [pre_tokenizers.Digits(individual_digits=True)] if kind[1] == "smollm" else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind_of in zip(tokens, types, strict=False)
            if kind_of == _CONTROL_TOKEN
        ]
    )
    return str(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False))


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the interleaving of the two halves of each head's rows: ``[H * D, C]`` -> the same."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)  # [H, D/2, 2, C]
    return pairs.transpose(1, 2).reshape(rows, columns)


def _model_key(name: str, num_layers: int) -> str | None:
    """Key of ``LlamaModel`` for a GGUF tensor name, ``None`` where the tensor is not needed."""
    fixed = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}
    if name in fixed:
        return fixed[name]
    if name in {"output.weight", "rope_freqs.weight"}:
        return None
    head, _, rest = name.partition(".")
    index, _, part = rest.partition(".")
    stem = part.removesuffix(".weight")
    if head != "blk" or not index.isdigit() or stem not in _BLOCK_KEYS or stem == part:
        raise GGUFError(f"unknown tensor {name!r}")
    if int(index) >= num_layers:
        return None
    return f"layers.{index}.{_BLOCK_KEYS[stem]}.weight"


def _token_id(reader: GGUFReader, role: str) -> int | None:
    value = _field(reader, f"tokenizer.ggml.{role}_token_id", -1)
    return None if value == -1 else int(value)


_MISSING = object()


def _field(reader: GGUFReader, key: str, default: Any = _MISSING) -> Any:
    """Value of a metadata field; ``GGUFError`` when it is absent and there is no default."""
    field = reader.fields.get(key)
    if field is not None:
        return field.contents()
    if default is _MISSING:
        raise GGUFError(f"the file has no field {key!r}")
    return default
