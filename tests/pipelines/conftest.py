"""Tiny pipelines of random parts, as diffusers saves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import Gemma2Config, Gemma2Model, PreTrainedTokenizerFast

CAPTION = 16
INSTRUCTION = ["Tell what the picture shows.", "User Prompt: "]
"""In place of the published one, which is long."""
LENGTH = 32

TRANSFORMER: dict[str, Any] = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 1,
    "attention_head_dim": 32,
    "num_layers": 3,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 32,
    "caption_channels": CAPTION,
    "sample_size": 16,
}
VAE: dict[str, Any] = {
    "latent_channels": 4,
    "attention_head_dim": 4,
    "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
    "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
    "encoder_block_out_channels": (8, 8),
    "decoder_block_out_channels": (8, 8),
    "encoder_qkv_multiscales": ((), (5,)),
    "decoder_qkv_multiscales": ((), (5,)),
    "encoder_layers_per_block": (1, 1),
    "decoder_layers_per_block": (1, 1),
    "downsample_block_type": "conv",
    "upsample_block_type": "interpolate",
    "decoder_norm_types": "rms_norm",
    "decoder_act_fns": "silu",
    "scaling_factor": 0.41407,
}
"""Two times smaller per side, so that a 32 px picture has a 16x16 latent."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens, with a start token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<bos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


def tiny_encoder() -> Gemma2Model:
    torch.manual_seed(1)
    config = Gemma2Config(
        vocab_size=300,
        hidden_size=CAPTION,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.3,
    )
    return Gemma2Model(config).eval().requires_grad_(False)


def randomise(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Weights that make a lively model: nothing stays at its cautious start.

    Livelier ones would be chaotic, and rounding would show in the pictures.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 25
            scale = 1.2 / fan_in**0.5
            noise = torch.randn(parameter.shape, generator=generator) * scale
            parameter.copy_(noise + 1 if "norm" in name and name.endswith("weight") else noise)
    return model.eval()


def dpm_scheduler() -> diffusers.DPMSolverMultistepScheduler:
    return diffusers.DPMSolverMultistepScheduler(
        flow_shift=3.0, use_flow_sigmas=True, prediction_type="flow_prediction"
    )


def _text_parts() -> dict[str, Any]:
    return {"tokenizer": tiny_tokenizer(), "text_encoder": tiny_encoder()}


def _vae() -> diffusers.AutoencoderDC:
    return randomise(diffusers.AutoencoderDC(**VAE), 2)


def stock_sana(**changes: Any) -> diffusers.SanaPipeline:
    """diffusers' own pipeline; `changes` go to the transformer."""
    transformer = randomise(diffusers.SanaTransformer2DModel(**TRANSFORMER | changes), 3)
    parts = _text_parts() | {"vae": _vae(), "transformer": transformer}
    return diffusers.SanaPipeline(**parts, scheduler=dpm_scheduler())


def stock_sprint() -> diffusers.SanaSprintPipeline:
    extra = {"guidance_embeds": True, "qk_norm": "rms_norm_across_heads"}
    transformer = randomise(diffusers.SanaTransformer2DModel(**TRANSFORMER | extra), 3)
    scheduler = diffusers.SCMScheduler(prediction_type="trigflow", sigma_data=0.5)
    parts = _text_parts() | {"vae": _vae(), "transformer": transformer}
    return diffusers.SanaSprintPipeline(**parts, scheduler=scheduler)


def stock_controlnet() -> diffusers.SanaControlNetPipeline:
    transformer = randomise(diffusers.SanaTransformer2DModel(**TRANSFORMER), 3)
    net = randomise(diffusers.SanaControlNetModel(**TRANSFORMER | {"num_layers": 2}), 4)
    parts = _text_parts() | {"vae": _vae(), "transformer": transformer, "controlnet": net}
    return diffusers.SanaControlNetPipeline(**parts, scheduler=dpm_scheduler())


@dataclass(frozen=True)
class Saved:
    """A folder that diffusers wrote, and the pipeline it came from."""

    folder: Path
    stock: Any


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    """`saved("sana")`, `saved("sprint")`, `saved("controlnet")`: made once."""
    makers = {"sana": stock_sana, "sprint": stock_sprint, "controlnet": stock_controlnet}
    made: dict[str, Saved] = {}

    def get(kind: str) -> Saved:
        if kind not in made:
            stock = makers[kind]()
            stock.set_progress_bar_config(disable=True)
            folder = tmp_path_factory.mktemp(kind)
            stock.save_pretrained(folder)
            made[kind] = Saved(folder, stock)
        return made[kind]

    return get


def _load(name: str, folder: Path) -> Any:
    import sana_like_pipelines

    pipe = getattr(sana_like_pipelines, name).from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture
def sana(saved: Callable[[str], Saved]) -> Any:
    """Our pipeline, freshly loaded from the folder that diffusers wrote."""
    return _load("SanaPipeline", saved("sana").folder)


@pytest.fixture
def sprint(saved: Callable[[str], Saved]) -> Any:
    return _load("SanaSprintPipeline", saved("sprint").folder)


@pytest.fixture
def controlnet(saved: Callable[[str], Saved]) -> Any:
    return _load("SanaControlNetPipeline", saved("controlnet").folder)


@pytest.fixture
def quick() -> dict[str, Any]:
    """Arguments that keep a call short; both packages' pipelines take them."""
    return {
        "complex_human_instruction": INSTRUCTION,
        "max_sequence_length": LENGTH,
        "num_inference_steps": 3,
        "height": 32,
        "width": 32,
    }
