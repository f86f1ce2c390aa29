"""Conversion of NVlabs' checkpoints, made here from tiny models by the inverse map."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import diffusers
import pytest
import torch
from safetensors.torch import save_file

from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.transformers.video import SanaVideoTransformer3DModel
from sana_like.weights.convert import convert_checkpoint, convert_here
from sana_like.weights.errors import WeightsError
from sana_like.weights.model import published_state_dict

HEADS = {"num_cross_attention_heads": 2, "cross_attention_head_dim": 16}
TINY = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 1,
    "attention_head_dim": 32,
    "cross_attention_dim": 32,
    "caption_channels": 8,
    "sample_size": 32,
    **HEADS,
}
STEM = {
    "patch_embed.proj": "x_embedder.proj",
    "patch_embedding": "x_embedder.proj",
    "caption_projection.linear_1": "y_embedder.y_proj.fc1",
    "caption_projection.linear_2": "y_embedder.y_proj.fc2",
    "caption_norm": "attention_y_norm",
    "time_embed.linear": "t_block.1",
    "time_embed.emb.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_embed.emb.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_embed.guidance_embedder.linear_1": "cfg_embedder.mlp.0",
    "time_embed.guidance_embedder.linear_2": "cfg_embedder.mlp.2",
    "proj_out": "final_layer.linear",
    "input_block": "controlnet.0.before_proj",
}
INSIDE = {
    "attn1.to_out.0": "attn.proj",
    "attn1.norm_q": "attn.q_norm",
    "attn1.norm_k": "attn.k_norm",
    "attn2.to_q": "cross_attn.q_linear",
    "attn2.to_out.0": "cross_attn.proj",
    "attn2.norm_q": "cross_attn.q_norm",
    "attn2.norm_k": "cross_attn.k_norm",
    "ff.conv_inverted": "mlp.inverted_conv.conv",
    "ff.conv_depth": "mlp.depth_conv.conv",
    "ff.conv_point": "mlp.point_conv.conv",
    "ff.conv_temp": "mlp.t_conv",
}


def original_transformer(model, *, control: bool = False) -> dict[str, torch.Tensor]:
    """The state dict as NVlabs' classes name it."""
    state = {key: value.clone() for key, value in published_state_dict(model).items()}
    block = "controlnet.{}.copied_block" if control else "blocks.{}"
    result = {}
    for i in range(model.config.num_layers):
        mine, old = f"transformer_blocks.{i}.", block.format(i) + "."
        parts = [state.pop(f"{mine}attn1.to_{name}.weight") for name in "qkv"]
        result[f"{old}attn.qkv.weight"] = torch.cat(parts)
        for kind in ("weight", "bias"):
            parts = [state.pop(f"{mine}attn2.to_{name}.{kind}") for name in "kv"]
            result[f"{old}cross_attn.kv_linear.{kind}"] = torch.cat(parts)
        result[f"{old}scale_shift_table"] = state.pop(f"{mine}scale_shift_table")
        for key in [key for key in state if key.startswith(mine)]:
            module, _, kind = key.removeprefix(mine).rpartition(".")
            result[f"{old}{INSIDE[module]}.{kind}"] = state.pop(key)
    if "scale_shift_table" in state:
        result["final_layer.scale_shift_table"] = state.pop("scale_shift_table")
    for key, value in state.items():
        module, _, kind = key.rpartition(".")
        if module.startswith("controlnet_blocks."):
            result[f"controlnet.{module.split('.')[1]}.after_proj.{kind}"] = value
        else:
            result[f"{STEM[module]}.{kind}"] = value
    if isinstance(model.config.patch_size, int):
        tokens = (model.config.sample_size // model.config.patch_size) ** 2
        result["pos_embed"] = torch.zeros(1, tokens, 32)
    result["y_embedder.y_embedding"] = torch.randn(300, 8)
    return result


def original_autoencoder(model) -> dict[str, torch.Tensor]:
    """The state dict as the authors of DC-AE name it; resampling blocks of the `conv` kinds."""
    state = {key: value.clone() for key, value in published_state_dict(model).items()}
    ends = {
        "encoder.conv_in": "encoder.project_in.conv",
        "encoder.conv_out": "encoder.project_out.main.op_list.0.conv",
        "decoder.conv_in": "decoder.project_in.main.conv",
        "decoder.norm_out": "decoder.project_out.op_list.0",
        "decoder.conv_out": "decoder.project_out.op_list.2.conv",
    }
    inside = {
        "conv1": "main.conv1.conv",
        "conv2": "main.conv2.conv",
        "norm": "main.conv2.norm",
        "attn.to_out": "context_module.main.proj.conv",
        "attn.norm_out": "context_module.main.proj.norm",
        "attn.to_qkv_multiscale.0.proj_in": "context_module.main.aggreg.0.0",
        "attn.to_qkv_multiscale.0.proj_out": "context_module.main.aggreg.0.1",
        "conv_out.conv_inverted": "local_module.main.inverted_conv.conv",
        "conv_out.conv_depth": "local_module.main.depth_conv.conv",
        "conv_out.conv_point": "local_module.main.point_conv.conv",
        "conv_out.norm": "local_module.main.point_conv.norm",
    }
    result = {}
    for key, value in state.items():
        module, _, kind = key.rpartition(".")
        if module in ends:
            result[f"{ends[module]}.{kind}"] = value
            continue
        side, _, stage, index, *rest = module.split(".")
        stem, name = f"{side}.stages.{stage}.op_list.{index}", ".".join(rest)
        if name in ("attn.to_k", "attn.to_v"):
            continue
        if name == "attn.to_q":
            parts = [state[key.replace("to_q", f"to_{part}")] for part in "qkv"]
            result[f"{stem}.context_module.main.qkv.conv.{kind}"] = torch.cat(parts)[
                ..., None, None
            ]
        elif name == "conv":
            old = "main.conv" if side == "encoder" else "main.conv.conv"
            result[f"{stem}.{old}.{kind}"] = value
        else:
            matrix = name == "attn.to_out"
            result[f"{stem}.{inside[name]}.{kind}"] = value[..., None, None] if matrix else value
    return result


def same_weights(model, folder: Path, dtype=torch.float32) -> bool:
    loaded = published_state_dict(type(model).from_pretrained(folder))
    expected = published_state_dict(model)
    return loaded.keys() == expected.keys() and all(
        torch.equal(loaded[key], expected[key].to(dtype)) for key in expected
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"num_layers": 2},
        {"num_layers": 3, "qk_norm": "rms_norm_across_heads"},
        {"num_layers": 2, "qk_norm": "rms_norm_across_heads", "guidance_embeds": True},
        {"num_layers": 1, "patch_size": 2, "mlp_ratio": 3.0, "out_channels": 8},
        {"num_layers": 1, "sample_size": 64, "interpolation_scale": 1.0},
    ],
    ids=["sana", "sana-1.5", "sprint", "patch", "2k"],
)
def test_a_transformer_is_inferred_from_its_shapes(tmp_path: Path, extra) -> None:
    model = SanaTransformer2DModel(**{**TINY, **extra})
    source = tmp_path / "model.pth"
    checkpoint = {"state_dict": original_transformer(model), "optimizer": {"lr": 1.0}, "epoch": 3}
    torch.save(checkpoint, source)
    report = convert_here(source, tmp_path / "out", config=HEADS)
    assert report.class_name == "SanaTransformer2DModel"
    assert sorted(report.dropped) == ["pos_embed", "y_embedder.y_embedding"]
    assert sorted(report.ignored) == ["epoch", "optimizer"]
    assert report.written == len(published_state_dict(model))
    assert report.mapped == report.written - 3 * extra["num_layers"] - extra["num_layers"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == model.published_config()
    assert same_weights(model, tmp_path / "out")
    assert diffusers.SanaTransformer2DModel.from_pretrained(tmp_path / "out")


def test_a_controlnet_without_the_frozen_transformer_it_came_with(tmp_path: Path) -> None:
    model = SanaControlNetModel(**TINY, num_layers=2)
    state = original_transformer(model, control=True)
    state |= {"blocks.0.attn.qkv.weight": torch.ones(3), "final_layer.linear.bias": torch.ones(1)}
    torch.save({"state_dict": state}, tmp_path / "model.pth")
    report = convert_here(tmp_path / "model.pth", tmp_path / "out", config=HEADS)
    assert report.class_name == "SanaControlNetModel"
    assert len(report.dropped) == 4
    assert same_weights(model, tmp_path / "out")


AUTOENCODER = {
    "latent_channels": 4,
    "attention_head_dim": 8,
    "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
    "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
    "encoder_block_out_channels": (8, 16),
    "decoder_block_out_channels": (8, 16),
    "encoder_layers_per_block": (1, 1),
    "decoder_layers_per_block": (1, 2),
    "encoder_qkv_multiscales": ((), (5,)),
    "decoder_qkv_multiscales": ((), (5,)),
    "upsample_block_type": "interpolate",
    "downsample_block_type": "conv",
    "decoder_norm_types": ("batch_norm", "rms_norm"),
    "decoder_act_fns": ("relu", "silu"),
    "scaling_factor": 0.41407,
}


def test_an_autoencoder_with_its_config(tmp_path: Path) -> None:
    model = AutoencoderDC(**AUTOENCODER)
    model.decoder.up_blocks[0][1].norm.running_mean.normal_()
    source = tmp_path / "model.safetensors"
    save_file(original_autoencoder(model), source)
    report = convert_here(source, tmp_path / "out", config=AUTOENCODER)
    assert report.class_name == "AutoencoderDC"
    assert report.config["scaling_factor"] == 0.41407
    assert same_weights(model, tmp_path / "out")
    assert diffusers.AutoencoderDC.from_pretrained(tmp_path / "out")
    with pytest.raises(WeightsError, match=r"does not tell scaling_factor; it has no published"):
        convert_here(source, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_diffusers_pickles_convert_with_the_config_beside_them(tmp_path: Path) -> None:
    model = SanaTransformer2DModel(**TINY, num_layers=1)
    stock = tmp_path / "stock"
    model.save_pretrained(stock)
    source = stock / "diffusion_pytorch_model.bin"
    torch.save(published_state_dict(model), source)
    convert_here(source, tmp_path / "out", dtype="bfloat16")
    assert same_weights(model, tmp_path / "out", torch.bfloat16)


def test_the_process_answers_with_a_report_or_a_clear_error(tmp_path: Path, monkeypatch) -> None:
    model = SanaTransformer2DModel(**TINY, num_layers=1)
    source = tmp_path / "model.pth"
    torch.save({"state_dict": original_transformer(model)}, source)
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "torch.py").write_text(f"open({str(trap / 'ran')!r}, 'w')")
    monkeypatch.chdir(trap)
    report = convert_checkpoint(source, tmp_path / "out", config=HEADS)
    assert report.num_parameters == sum(p.numel() for p in model.parameters())
    assert same_weights(model, tmp_path / "out")
    marker = tmp_path / "marker"
    source.write_bytes(pickle.dumps({"state_dict": Marker(marker)}))
    with pytest.raises(WeightsError, match="refused: it holds more than tensors") as caught:
        convert_checkpoint(source, tmp_path / "other")
    assert str(source) in str(caught.value)
    assert not marker.exists()
    assert not (trap / "ran").exists()
    assert not (tmp_path / "other").exists()


class Marker:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def original() -> dict[str, torch.Tensor]:
    return original_transformer(SanaTransformer2DModel(**TINY, num_layers=2))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (
            lambda s: s.update({"blocks.1.attn.extra.weight": torch.ones(1)}),
            "1 of .* keys are in no",
        ),
        (lambda s: s.pop("blocks.1.attn.proj.bias"), r"1 missing: transformer_blocks\.1\.attn1"),
        (lambda s: s.update({"blocks.1.attn.qkv.weight": torch.ones(95, 32)}), "has no 3 parts"),
        (lambda s: s.update({"blocks.1.attn.qkv.weight": torch.ones(93, 32)}), "misfit"),
        (lambda s: s["blocks.0.attn.proj.bias"].fill_(float("nan")), "holds NaN"),
        (lambda s: s.pop("pos_embed"), "does not tell sample_size; give image_size"),
        (lambda s: s.pop("x_embedder.proj.weight"), "keys that no model here has"),
        (lambda s: s.pop("blocks.0.mlp.point_conv.conv.weight"), "lacks a tensor of every such"),
        (lambda s: s.update({"blocks.0.note": "text"}), r"are no tensors: blocks\.0\.note"),
        (lambda s: s.clear(), "expected a state dict"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(
    tmp_path: Path, original, change, part: str
) -> None:
    change(original)
    torch.save({"state_dict": original}, tmp_path / "model.pth")
    with pytest.raises(WeightsError, match=part):
        convert_here(tmp_path / "model.pth", tmp_path / "out", config=HEADS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "does not tell num_cross_attention_heads"),
        ({"config": HEADS, "image_size": 1000}, "multiple of 32"),
        ({"config": HEADS, "dtype": "int8"}, "no floating type"),
        ({"config": {**HEADS, "widht": 3}}, "unexpected keyword argument 'widht'"),
        ({"preset": "no-such"}, "no preset 'no-such'"),
        ({"preset": "sana-0.6b-1024"}, "layers, the weights hold|does not fit"),
    ],
)
def test_open_questions_and_wrong_options_are_errors(
    tmp_path: Path, original, options, part: str
) -> None:
    torch.save({"state_dict": original}, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=part):
        convert_here(tmp_path / "model.pth", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [512, 2048, 4096])
def test_the_size_asked_for_wins(tmp_path: Path, original, size: int) -> None:
    original.pop("pos_embed")
    torch.save(original, tmp_path / "model.pth")
    report = convert_here(tmp_path / "model.pth", tmp_path / "out", config=HEADS, image_size=size)
    assert report.config["sample_size"] == size // 32
    expected = {512: None, 2048: 1.0, 4096: 2.0}[size]
    assert report.config["interpolation_scale"] == expected


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"PK\x03\x04 cut", b"\x80\x02."])
def test_broken_checkpoints_are_refused(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "model.pth"
    source.write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.pth: (no readable checkpoint|refused)"):
        convert_here(source, tmp_path / "out")
    with pytest.raises(WeightsError, match="cannot be read"):
        convert_here(tmp_path / "absent.pth", tmp_path / "out")


def test_wrappers_prefixes_are_taken_off(tmp_path: Path) -> None:
    model = SanaTransformer2DModel(**TINY, num_layers=1)
    state = {f"module.{key}": value for key, value in original_transformer(model).items()}
    torch.save({"model": {"state_dict": state}}, tmp_path / "model.pth")
    convert_here(tmp_path / "model.pth", tmp_path / "out", config=HEADS)
    assert same_weights(model, tmp_path / "out")


def test_video_weights_need_the_config_that_shapes_do_not_tell(tmp_path) -> None:
    config = {**TINY, "sample_size": 30, "num_layers": 2, "mlp_ratio": 3.0}
    model = SanaVideoTransformer3DModel(**config)
    torch.nn.init.normal_(model.transformer_blocks[1].ff.conv_temp.weight)
    torch.save({"state_dict": original_transformer(model)}, tmp_path / "video.pth")
    with pytest.raises(WeightsError, match="does not tell sample_size"):
        convert_here(tmp_path / "video.pth", tmp_path / "folder")
    report = convert_here(tmp_path / "video.pth", tmp_path / "folder", config=config)
    assert report.class_name == "SanaVideoTransformer3DModel"
    loaded = SanaVideoTransformer3DModel.from_pretrained(tmp_path / "folder")
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    theirs = diffusers.SanaVideoTransformer3DModel.from_pretrained(tmp_path / "folder")
    assert torch.equal(
        theirs.state_dict()["transformer_blocks.1.ff.conv_temp.weight"],
        published_state_dict(model)["transformer_blocks.1.ff.conv_temp.weight"],
    )
