"""Descriptions of weights, told from headers alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.weights import strict
from sana_like.weights.architecture import guess_architecture, transformer_config
from sana_like.weights.errors import WeightsError
from sana_like.weights.inspect import inspect_weights
from sana_like.weights.match import expected_tensors

CONFIG = {
    "num_attention_heads": 1,
    "num_layers": 2,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 32,
    "caption_channels": 8,
}


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: want.shape for key, want in expected_tensors(model).items()}


def test_a_model_folder(tmp_path: Path, monkeypatch) -> None:
    model = SanaTransformer2DModel(**CONFIG).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size=40_000)
    monkeypatch.setattr(strict, "_read_tensor", lambda info: pytest.fail("a tensor was read"))
    (summary,) = inspect_weights(tmp_path)
    assert (summary.kind, summary.layout) == ("model", "diffusers")
    assert summary.class_name == summary.config_class == "SanaTransformer2DModel"
    count = sum(parameter.numel() for parameter in model.parameters())
    assert summary.num_parameters == count
    assert summary.num_tensors == len(model.state_dict())
    assert summary.dtypes == {"bfloat16": count}
    assert len(summary.files) > 1
    for file in summary.files:
        content = (tmp_path / file.name).read_bytes()
        assert file.size == len(content)
        assert file.sha256 == hashlib.sha256(content).hexdigest()
    assert f"{count:,} parameters" in str(summary)


def test_a_pipeline_folder_lists_its_models(tmp_path: Path) -> None:
    SanaTransformer2DModel(**CONFIG).save_pretrained(tmp_path / "transformer")
    SanaControlNetModel(**CONFIG).save_pretrained(tmp_path / "controlnet", int8=True)
    (tmp_path / "scheduler").mkdir()
    summaries = inspect_weights(tmp_path, checksums=False)
    assert [summary.class_name for summary in summaries] == [
        "SanaControlNetModel",
        "SanaTransformer2DModel",
    ]
    assert summaries[0].dtypes["int8"] > 0
    assert summaries[0].num_tensors == len(SanaControlNetModel(**CONFIG).state_dict())
    assert summaries[0].files[0].sha256 is None


def test_an_original_checkpoint_is_named_as_such(tmp_path: Path) -> None:
    save_file({"x_embedder.proj.weight": torch.ones(2, 2)}, tmp_path / "x.safetensors")
    (summary,) = inspect_weights(tmp_path / "x.safetensors")
    assert (summary.layout, summary.class_name) == ("NVlabs", "SanaTransformer2DModel")


def test_an_adapter(tmp_path: Path) -> None:
    tensors = {
        "transformer.a.lora_A.weight": torch.ones(4, 8),
        "transformer.a.lora_B.weight": torch.ones(8, 4),
        "transformer.b.lora_A.default.weight": torch.ones(4, 8, 1, 1),
        "transformer.b.lora_B.default.weight": torch.ones(8, 4, 1, 1),
    }
    save_file(tensors, tmp_path / "pytorch_lora_weights.safetensors")
    (summary,) = inspect_weights(tmp_path)
    assert summary.kind == "adapter"
    assert summary.ranks == {4: 2}
    assert "rank 4 in 2 layers" in str(summary)


def test_unknown_keys_are_called_unknown(tmp_path: Path) -> None:
    save_file({"fc.weight": torch.ones(2)}, tmp_path / "x.safetensors")
    (summary,) = inspect_weights(tmp_path / "x.safetensors")
    assert (summary.kind, summary.layout, summary.class_name) == ("unknown", "unknown", None)


def test_pickles_broken_files_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="holds no safetensors"):
        inspect_weights(tmp_path)
    (tmp_path / "x.pth").write_bytes(b"\x80\x02.")
    (tmp_path / "y.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(WeightsError, match="sana-like convert"):
        inspect_weights(tmp_path / "x.pth")
    with pytest.raises(WeightsError, match=r"y\.safetensors"):
        inspect_weights(tmp_path / "y.safetensors")


@pytest.mark.parametrize("name", ["sana-0.6b-1024", "sana-1.5-1.6b-1024", "sana-sprint-0.6b-1024"])
def test_published_shapes_are_recognised(name: str) -> None:
    from sana_like.presets import preset

    with torch.device("meta"):
        model = SanaTransformer2DModel(**preset(name).config())
    shapes = shapes_of(model)
    assert name in guess_architecture(shapes).presets
    inferred = transformer_config(shapes)
    same = {key: model.config[key] for key in inferred}
    assert inferred == same
    assert {"num_cross_attention_heads", "qk_norm"} & set(inferred)


@pytest.mark.parametrize("ratio", [1.0, 2.5, 3.3, 2.71828])
def test_any_feed_forward_ratio_is_found_again(ratio: float) -> None:
    model = SanaTransformer2DModel(**CONFIG, mlp_ratio=ratio)
    inferred = transformer_config(shapes_of(model))["mlp_ratio"]
    assert int(inferred * 32) == int(ratio * 32)
