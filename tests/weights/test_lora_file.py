"""Spellings of LoRA files, alphas, and what is refused before a model is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sana_like.weights.errors import WeightsError
from sana_like.weights.lora_file import adapter_metadata, layer_name, read_lora

LAYERS = {"transformer_blocks.0.attn1.to_q", "transformer_blocks.0.ff.conv_point", "proj_out"}
NAME = "transformer_blocks.0.attn1.to_q"


def pair(written: str, down: str, up: str, rank: int = 2) -> dict[str, torch.Tensor]:
    return {f"{written}.{down}": torch.randn(rank, 8), f"{written}.{up}": torch.randn(8, rank)}


@pytest.mark.parametrize(
    ("written", "down", "up"),
    [
        (f"transformer.{NAME}", "lora_A.weight", "lora_B.weight"),
        (NAME, "lora_A.default.weight", "lora_B.default.weight"),
        (f"base_model.model.{NAME}", "lora_A.weight", "lora_B.weight"),
        (f"transformer.{NAME}", "lora.down.weight", "lora.up.weight"),
        (f"diffusion_model.{NAME}", "lora_down.weight", "lora_up.weight"),
        ("lora_unet_" + NAME.replace(".", "_"), "lora_down.weight", "lora_up.weight"),
    ],
)
def test_every_spelling_in_use_names_the_same_layer(written: str, down: str, up: str) -> None:
    contents = read_lora(pair(written, down, up))
    assert [layer_name(name, LAYERS) for name in contents.factors] == [NAME]
    assert contents.leftover == []


def test_other_names_match_nothing() -> None:
    for written in ("unet.mid.to_q", "to_q", f"text_encoder.{NAME}", f"{NAME}.x", ""):
        assert layer_name(written, LAYERS) is None


def test_alpha_comes_from_its_key_then_the_metadata_then_is_unknown(tmp_path: Path) -> None:
    tensors = pair(NAME, "lora_A.weight", "lora_B.weight")
    assert read_lora(tensors).factors[NAME].alpha is None
    path = tmp_path / "x.safetensors"
    settings = {"transformer.r": 2, "transformer.lora_alpha": 6}
    save_file(tensors, path, {"lora_adapter_metadata": json.dumps(settings)})
    assert read_lora(path).factors[NAME].alpha == 6
    settings["transformer.alpha_pattern"] = {"to_q": 3}  # type: ignore[assignment]
    save_file(tensors, path, {"lora_adapter_metadata": json.dumps(settings)})
    assert read_lora(path).factors[NAME].alpha == 3
    tensors[f"{NAME}.alpha"] = torch.tensor(5.0)
    save_file(tensors, path, {"lora_adapter_metadata": json.dumps(settings)})
    assert read_lora(path).factors[NAME].alpha == 5


def test_peft_folders_are_read_with_their_config(tmp_path: Path) -> None:
    tensors = pair(f"base_model.model.{NAME}", "lora_A.weight", "lora_B.weight", rank=4)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    config = {"r": 4, "lora_alpha": 8, "use_rslora": True}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (factors,) = read_lora(tmp_path).factors.values()
    assert factors.alpha == pytest.approx(8 * 4**0.5)


def test_a_half_pair_and_foreign_keys_are_left_over() -> None:
    tensors = pair(NAME, "lora_A.weight", "lora_B.weight")
    tensors |= {
        "proj_out.lora_A.weight": torch.ones(2, 8),
        "proj_out.lora_magnitude_vector": torch.ones(8),
        "proj_out.alpha": torch.tensor(1.0),
    }
    contents = read_lora(tensors)
    assert list(contents.factors) == [NAME]
    assert sorted(contents.leftover) == sorted(key for key in tensors if "proj_out" in key)


def test_different_ranks_name_both_shapes() -> None:
    tensors = {f"{NAME}.lora_A.weight": torch.ones(4, 8), f"{NAME}.lora_B.weight": torch.ones(8, 2)}
    with pytest.raises(WeightsError, match=r"\[4, 8\] and lora_B \[8, 2\] have different ranks"):
        read_lora(tensors)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_factors_are_refused(bad: float) -> None:
    tensors = pair(NAME, "lora_A.weight", "lora_B.weight")
    tensors[f"{NAME}.lora_B.weight"][0, 0] = bad
    with pytest.raises(WeightsError, match="lora_B holds NaN"):
        read_lora(tensors)


@pytest.mark.parametrize("name", ["x.pt", "x.bin", "x.ckpt"])
def test_pickled_adapters_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(WeightsError, match="never loaded"):
        read_lora(tmp_path / name)


def test_a_folder_without_an_adapter_lists_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="safetensors files in it: none"):
        read_lora(tmp_path)
    for name in ("a", "b"):
        save_file({"x": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(WeightsError, match=r"a\.safetensors, b\.safetensors"):
        read_lora(tmp_path)
    with pytest.raises(WeightsError, match="cannot be read"):
        read_lora(tmp_path / "absent.safetensors")


def test_metadata_keeps_every_rank_and_alpha() -> None:
    factors = {
        **read_lora(pair("a", "lora_A.weight", "lora_B.weight", 2)).factors,
        **read_lora(pair("b", "lora_A.weight", "lora_B.weight", 2)).factors,
        **read_lora(pair("c.a", "lora_A.weight", "lora_B.weight", 3)).factors,
    }
    text = adapter_metadata(factors, "transformer")["lora_adapter_metadata"]
    settings = json.loads(text)
    assert settings["transformer.r"] == 2
    assert settings["transformer.rank_pattern"] == {"^c.a": 3}
