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


VIDEO_AUTOENCODER = {
    **AUTOENCODER,
    "encoder_block_out_channels": [8, 16, 16, 16],
    "decoder_block_out_channels": [8, 16, 16, 16],
    "encoder_layers_per_block": [0, 0, 0, 1],
    "decoder_layers_per_block": [0, 0, 0, 1],
    "encoder_qkv_multiscales": [[], [], [], []],
    "decoder_qkv_multiscales": [[], [], [], []],
}
VIDEO_TRANSFORMER = {key: value for key, value in TRANSFORMER.items() if key != "dropout"} | {
    "patch_size": [1, 1, 1]
}


def _tuples(config: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(map(tuple, v)) if "scales" in k else v for k, v in config.items()}


@pytest.fixture
def tiny_video_autoencoder(tmp_path: Path) -> Path:
    """A saved autoencoder of clips, factor 8 in space and 1 in time, with random weights."""
    from sana_like import AutoencoderDCVideo

    torch.manual_seed(5)
    stages = {
        "encoder_temporal_layers": (0, 0, 0, 1),
        "decoder_temporal_layers": (0, 0, 0, 1),
        "temporal_stages": (),
    }
    model = AutoencoderDCVideo(**_tuples(VIDEO_AUTOENCODER) | stages)
    model.register_to_config(scaling_factor=3.0)
    model.save_pretrained(tmp_path / "video-ae")
    return tmp_path / "video-ae"


@pytest.fixture
def clips_folder(tmp_path: Path) -> Path:
    """Two real clips of 6 frames at 8 a second with captions, moving bars on grey."""
    import numpy as np

    from sana_like_pipelines.media import write_clip

    folder = tmp_path / "clips"
    folder.mkdir()
    for number in range(2):
        frames = np.full((6, 32, 32, 3), 128, np.uint8)
        for place in range(6):
            frames[place, :, 4 * place + 4 * number : 4 * place + 8, number] = 255
        write_clip(frames, folder / f"bar{number}.gif", 8)
        (folder / f"bar{number}.txt").write_text(f"a thing {number}")
    return folder


@pytest.fixture
def video_recipe(
    flow_recipe: dict[str, Any], tiny_video_autoencoder: Path, clips_folder: Path
) -> dict[str, Any]:
    shared = flow_recipe["task"]
    task = {
        "kind": "text_to_video",
        "model": VIDEO_TRANSFORMER,
        "autoencoder": str(tiny_video_autoencoder),
        "text_encoder": shared["text_encoder"],
        "text_settings": {**shared["text_settings"], "max_sequence_length": 24},
        "clips": {"frames": 4, "drawn": 1, "captions": 2, "share": 0.5},
        "pictures_every": 3,
        "picture_batch": 4,
        "temporal_weight": 0.1,
        "sample_steps": 2,
        "sample_prompts": ["thing 1 , 3d"],
        "evaluate_clips": 4,
    }
    data = {**flow_recipe["data"], "clips": str(clips_folder)}
    train = {**flow_recipe["train"], "batch_size": 2, "max_steps": 12}
    return {**flow_recipe, "name": "tiny-video", "task": task, "data": data, "train": train}


@pytest.fixture
def chunk_recipe(video_recipe: dict[str, Any]) -> dict[str, Any]:
    task = {**video_recipe["task"], "chunk": 2, "clean_past": 0.5}
    return {**video_recipe, "name": "tiny-chunks", "task": task}


@pytest.fixture
def stage_folder(chunk_recipe: dict[str, Any], tmp_path: Path) -> Path:
    """An untrained block-causal model as a pipeline folder, for the stages that go on from it."""
    from sana_like_train.building import build_task
    from sana_like_train.config import Recipe

    build_task(Recipe.model_validate(chunk_recipe)).export(tmp_path / "stage")
    return tmp_path / "stage"


@pytest.fixture
def pairs_recipe(chunk_recipe: dict[str, Any], stage_folder: Path) -> dict[str, Any]:
    kept = ("autoencoder", "text_encoder", "text_settings", "clips", "sample_prompts")
    task = {key: chunk_recipe["task"][key] for key in kept} | {
        "kind": "few_step_pairs",
        "chunk": 2,
        "levels": [1.0, 0.5],
        "pairs": 10,
        "teacher_steps": 2,
        "evaluate_clips": 2,
        "first_frame": 0.5,
    }
    train = {**chunk_recipe["train"], "init_from": str(stage_folder)}
    return {**chunk_recipe, "name": "tiny-pairs", "task": task, "train": train}


@pytest.fixture
def forcing_recipe(pairs_recipe: dict[str, Any], stage_folder: Path) -> dict[str, Any]:
    kept = {k: v for k, v in pairs_recipe["task"].items() if k not in ("pairs", "teacher_steps")}
    task = kept | {
        "kind": "self_forcing",
        "teacher": str(stage_folder),
        "windows": [[0, 2], [6, 3]],
        "trained_chunks": 2,
        "critic_steps": 2,
        "critic_lr": 1e-3,
        "evaluate_clips": 2,
    }
    return {**pairs_recipe, "name": "tiny-forcing", "task": task}


@pytest.fixture
def video_autoencoder_recipe(
    autoencoder_recipe: dict[str, Any], clips_folder: Path
) -> dict[str, Any]:
    model = VIDEO_AUTOENCODER | {
        "encoder_temporal_layers": [0, 0, 0, 1],
        "decoder_temporal_layers": [0, 0, 0, 1],
        "temporal_stages": [],
    }
    task = {
        "kind": "video_autoencoder",
        "model": model,
        "trainable": ["encoder", "decoder"],
        "clips": {"frames": 3, "drawn": 1, "share": 0.5},
        "crop": 16,
        "crop_schedule": [[6, 0, 1]],
        "adversary": {"width": 8, "layers": 2},
        "evaluate_clips": 2,
    }
    data = {**autoencoder_recipe["data"], "clips": str(clips_folder)}
    train = {**autoencoder_recipe["train"], "batch_size": 2, "max_steps": 12}
    return {**autoencoder_recipe, "name": "tiny-vae", "task": task, "data": data, "train": train}
