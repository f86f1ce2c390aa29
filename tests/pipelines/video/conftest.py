"""Tiny video pipelines of random parts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

from sana_like import AutoencoderDCVideo, FlowEulerScheduler, SanaVideoTransformer3DModel
from sana_like_pipelines import (
    SanaImageToVideoPipeline,
    SanaLongVideoPipeline,
    SanaVideoPipeline,
    VideoSettings,
)

TRANSFORMER: dict[str, Any] = {
    "in_channels": 8,
    "out_channels": 8,
    "patch_size": (1, 1, 1),
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 3,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 32,
    "caption_channels": 16,
    "sample_size": 2,
}
VAE: dict[str, Any] = {
    "latent_channels": 8,
    "encoder_block_types": "GLUMBConv",
    "decoder_block_types": "GLUMBConv",
    "encoder_block_out_channels": (4, 8, 8, 16, 16, 16),
    "decoder_block_out_channels": (4, 8, 8, 16, 16, 16),
    "encoder_layers_per_block": (0, 0, 0, 1, 1, 1),
    "decoder_layers_per_block": (0, 0, 0, 1, 1, 1),
    "encoder_qkv_multiscales": ((),) * 6,
    "decoder_qkv_multiscales": ((),) * 6,
    "resample_empty_stages": True,
    "norm_type": "layer_norm",
    "decoder_norm_types": "layer_norm",
    "scaling_factor": 0.5,
}
SETTINGS = VideoSettings(64, 64, 9, Fraction(8), chunk=2, levels=(1.0, 0.9, 0.6))


def lively(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Random weights under which nothing stays at its cautious start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 25
            noise = torch.randn(parameter.shape, generator=generator) * 1.2 / fan_in**0.5
            parameter.copy_(noise + 1 if "norm" in name and name.endswith("weight") else noise)
    return model.eval()


@pytest.fixture(scope="session")
def networks() -> dict[str, Any]:
    return {
        "vae": lively(AutoencoderDCVideo(**VAE), 2),
        "transformer": lively(SanaVideoTransformer3DModel(**TRANSFORMER), 3),
    }


@pytest.fixture
def make_video(sana: Any, networks: dict[str, Any]) -> Any:
    """`make_video(class, **parts)`: a pipeline around the text parts of the tiny image pipeline."""

    def make(kind: Any, **parts: Any) -> Any:
        text = {"tokenizer": sana.tokenizer, "text_encoder": sana.text_encoder}
        given = {"scheduler": FlowEulerScheduler(shift=2.0), "video_settings": SETTINGS}
        pipe = kind(**{**text, **networks, **given, **parts})
        pipe.set_progress_bar_config(disable=True)
        return pipe

    return make


@pytest.fixture
def text_video(make_video: Any) -> Any:
    return make_video(SanaVideoPipeline)


@pytest.fixture
def image_video(make_video: Any) -> Any:
    return make_video(SanaImageToVideoPipeline)


@pytest.fixture
def long_video(make_video: Any) -> Any:
    return make_video(SanaLongVideoPipeline)


@pytest.fixture
def brief() -> dict[str, Any]:
    """Arguments that keep a call short."""
    return {
        "complex_human_instruction": None,
        "max_sequence_length": 16,
        "num_inference_steps": 2,
        "guidance_scale": 3.0,
        "output_type": "pt",
        "generator": 1,
    }
