"""Folders go back and forth between diffusers' classes and these, bit for bit."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sana_like
from sana_like.weights.errors import WeightsError
from sana_like.weights.model import published_state_dict

TRANSFORMER = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_layers": 2,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 8,
    "cross_attention_dim": 16,
    "caption_channels": 8,
    "sample_size": 8,
}
AUTOENCODER = {
    "latent_channels": 4,
    "attention_head_dim": 8,
    "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
    "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
    "encoder_block_out_channels": (8, 16),
    "decoder_block_out_channels": (8, 16),
    "encoder_layers_per_block": (0, 1),
    "decoder_layers_per_block": (0, 2),
    "encoder_qkv_multiscales": ((), (5,)),
    "decoder_qkv_multiscales": ((), (5,)),
    "decoder_norm_types": ("batch_norm", "rms_norm"),
    "decoder_act_fns": ("relu", "silu"),
}
SPRINT = {"qk_norm": "rms_norm_across_heads", "guidance_embeds": True}
CASES = [
    ("SanaTransformer2DModel", TRANSFORMER),
    ("SanaTransformer2DModel", {**TRANSFORMER, **SPRINT}),
    ("SanaTransformer2DModel", {**TRANSFORMER, "interpolation_scale": 1.0, "patch_size": 2}),
    ("SanaControlNetModel", TRANSFORMER),
    ("AutoencoderDC", AUTOENCODER),
]
IDS = ["sana", "sprint", "2k", "controlnet", "dc-ae"]


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize(("name", "config"), CASES, ids=IDS)
@pytest.mark.parametrize(
    "options", [{}, {"max_shard_size": 5000}, {"variant": "fp16", "max_shard_size": 5000}]
)
def test_there_and_back(tmp_path: Path, name: str, config, options) -> None:
    stock_class, our_class = getattr(diffusers, name), getattr(sana_like, name)
    stock = stock_class(**config)
    stock.save_pretrained(tmp_path / "stock", **options)
    variant = {"variant": options["variant"]} if "variant" in options else {}
    ours = our_class.from_pretrained(tmp_path / "stock", **variant)
    assert same(published_state_dict(ours), stock.state_dict())
    ours.save_pretrained(tmp_path / "ours", **options)
    again, info = stock_class.from_pretrained(
        tmp_path / "ours", output_loading_info=True, **variant
    )
    assert same(again.state_dict(), stock.state_dict())
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    written, read = (
        json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("ours", "stock")
    )
    read.pop("_name_or_path", None)
    assert written == read


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "config"), CASES, ids=IDS)
def test_every_loading_route_gives_the_same_model(tmp_path: Path, name, config, dtype) -> None:
    our_class = getattr(sana_like, name)
    built = our_class(**config)
    built.save_pretrained(tmp_path)
    built = built.to(dtype).eval()
    direct = our_class.from_pretrained(tmp_path, dtype=dtype)
    cast = our_class.from_pretrained(tmp_path).to(dtype)
    for other in (direct, cast):
        assert same(built.state_dict(), other.state_dict())
        for (key, mine), (_, theirs) in zip(
            built.named_buffers(), other.named_buffers(), strict=True
        ):
            assert mine.dtype == theirs.dtype, key
            assert torch.equal(mine, theirs), key


VALUES = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 2, 3, 10**6, 10**9, 2**63, 10**30])
    | st.sampled_from([0.0, -1.0, 2.5, 1e-30, 1e30, 1e308])
    | st.text(max_size=6)
    | st.lists(st.sampled_from([0, 1, 10**9, "ResBlock", None, [5]]), max_size=3)
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    result = {}
    for name, config in (("SanaTransformer2DModel", TRANSFORMER), ("AutoencoderDC", AUTOENCODER)):
        result[name] = tmp_path_factory.mktemp(name)
        getattr(sana_like, name)(**config).save_pretrained(result[name])
    return result


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_config_is_loaded_or_refused_in_a_second(folders, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(folders)))
    folder = folders[name]
    path = folder / "config.json"
    original = path.read_text()
    config: dict[str, Any] = json.loads(original)
    keys = [key for key in config if not key.startswith("_")]
    changed = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, min_size=1, max_size=2))
    path.write_text(json.dumps({**config, **changed}))
    start = time.process_time()
    try:
        getattr(sana_like, name).from_pretrained(folder)
    except WeightsError as error:
        assert str(folder) in str(error)
    finally:
        path.write_text(original)
    assert time.process_time() - start < 1
