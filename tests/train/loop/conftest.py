from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

AUTOENCODER = {
    "latent_channels": 4,
    "encoder_block_types": "GLUMBConv",
    "decoder_block_types": "GLUMBConv",
    "encoder_block_out_channels": [8, 16, 16],
    "decoder_block_out_channels": [8, 16, 16],
    "encoder_layers_per_block": [0, 0, 1],
    "decoder_layers_per_block": [0, 0, 1],
    "encoder_qkv_multiscales": [[], [], []],
    "decoder_qkv_multiscales": [[], [], []],
    "resample_empty_stages": True,
    "norm_type": "layer_norm",
    "decoder_norm_types": "layer_norm",
    "expand_ratio": 2.0,
}
TRANSFORMER = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 2,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 32,
    "caption_channels": 16,
    "sample_size": 8,
    "dropout": 0.1,
}


@pytest.fixture
def tiny_text_encoder(tmp_path: Path) -> Path:
    """A folder with a word-level tokenizer and a decoder of width 16."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "<unk>", "thing", "a", "of", ",", "es", "3d", "flat", "emoji"]
    vocabulary = {word: number for number, word in enumerate([*words, *map(str, range(10))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>", unk_token="<unk>"
    )
    folder = tmp_path / "text"
    fast.save_pretrained(folder / "tokenizer")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    LlamaModel(config).save_pretrained(folder / "text_encoder")
    return folder


@pytest.fixture
def tiny_autoencoder(tmp_path: Path) -> Path:
    """A saved autoencoder of factor 4 with random weights."""
    from sana_like import AutoencoderDC

    torch.manual_seed(5)
    config = {k: tuple(map(tuple, v)) if "scales" in k else v for k, v in AUTOENCODER.items()}
    AutoencoderDC(**config).save_pretrained(tmp_path / "ae")
    return tmp_path / "ae"


@pytest.fixture
def autoencoder_recipe(emoji_pack: Callable[..., Path], tmp_path: Path) -> dict[str, Any]:
    return {
        "name": "tiny-ae",
        "task": {
            "kind": "autoencoder",
            "model": AUTOENCODER,
            "crop": 16,
            "crop_schedule": [[12, 0, 2]],
            "latent_noise": 0.1,
            "perceptual_weight": 0.1,
            "adversary": {"width": 8, "layers": 2},
            "evaluate_pictures": 4,
        },
        "data": {
            "source": str(emoji_pack(6)),
            "resolution": 32,
            "cache_dir": str(tmp_path / "cache"),
        },
        "train": {
            "batch_size": 4,
            "max_steps": 20,
            "lr": 2e-3,
            "precision": "fp32",
            "device": "cpu",
            "schedule": {"kind": "cosine", "warmup_steps": 3},
            "evaluate_steps": 5,
            "sample_steps": 10,
        },
    }


@pytest.fixture
def flow_recipe(
    autoencoder_recipe: dict[str, Any], tiny_autoencoder: Path, tiny_text_encoder: Path
) -> dict[str, Any]:
    task = {
        "kind": "text_to_image",
        "model": TRANSFORMER,
        "autoencoder": str(tiny_autoencoder),
        "text_encoder": str(tiny_text_encoder),
        "text_settings": {
            "instruction": "a emoji of",
            "max_sequence_length": 12,
            "rms_normalize": True,
            "selection": "prompt",
        },
        "augment": {"variants": 2},
        "contrastive_weight": 0.05,
        "sample_steps": 2,
        "sample_prompts": ["thing 1 , 3d", "thing 2 , flat"],
        "evaluate_pictures": 4,
    }
    train = {**autoencoder_recipe["train"], "optimizer": {"kind": "muon"}}
    return {**autoencoder_recipe, "name": "tiny-flow", "task": task, "train": train}


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def write(recipe: dict[str, Any]) -> Path:
        path = tmp_path / f"{recipe['name']}.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    return write
