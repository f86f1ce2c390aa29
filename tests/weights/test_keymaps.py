"""The key tables, checked against keys of the original checkpoints written out by hand."""

from __future__ import annotations

import pytest

from sana_like.weights.keymaps import (
    AUTOENCODER,
    CONTROLNET,
    SPRINT,
    TRANSFORMER,
    VIDEO,
    find_map,
)

BLOCK = "transformer_blocks.19"
SELF = f"{BLOCK}.attn1"
STAGE = "encoder.down_blocks.3.0"


@pytest.mark.parametrize(
    ("table", "key", "targets"),
    [
        (TRANSFORMER, "x_embedder.proj.weight", ("patch_embed.proj.weight",)),
        (
            TRANSFORMER,
            "blocks.19.attn.qkv.weight",
            (
                f"{BLOCK}.attn1.to_q.weight",
                f"{BLOCK}.attn1.to_k.weight",
                f"{BLOCK}.attn1.to_v.weight",
            ),
        ),
        (
            TRANSFORMER,
            "blocks.19.cross_attn.kv_linear.bias",
            (f"{BLOCK}.attn2.to_k.bias", f"{BLOCK}.attn2.to_v.bias"),
        ),
        (TRANSFORMER, "blocks.19.attn.q_norm.weight", (f"{BLOCK}.attn1.norm_q.weight",)),
        (TRANSFORMER, "blocks.19.cross_attn.k_norm.weight", (f"{BLOCK}.attn2.norm_k.weight",)),
        (TRANSFORMER, "blocks.19.mlp.depth_conv.conv.bias", (f"{BLOCK}.ff.conv_depth.bias",)),
        (TRANSFORMER, "blocks.19.scale_shift_table", (f"{BLOCK}.scale_shift_table",)),
        (TRANSFORMER, "final_layer.scale_shift_table", ("scale_shift_table",)),
        (
            TRANSFORMER,
            "t_embedder.mlp.2.bias",
            ("time_embed.emb.timestep_embedder.linear_2.bias",),
        ),
        (SPRINT, "t_embedder.mlp.0.bias", ("time_embed.timestep_embedder.linear_1.bias",)),
        (SPRINT, "cfg_embedder.mlp.2.weight", ("time_embed.guidance_embedder.linear_2.weight",)),
        (TRANSFORMER, "pos_embed", ()),
        (TRANSFORMER, "y_embedder.y_embedding", ()),
        (SPRINT, "logvar_linear.weight", ()),
        (TRANSFORMER, "blocks.19.attn.rope", None),
        (TRANSFORMER, "blocks.x.attn.proj.weight", None),
        (TRANSFORMER, "pos_embedding", None),
        (TRANSFORMER, "cfg_embedder.mlp.0.weight", None),
        (CONTROLNET, "controlnet.0.before_proj.bias", ("input_block.bias",)),
        (CONTROLNET, "controlnet.1.before_proj.bias", None),
        (CONTROLNET, "controlnet.6.after_proj.weight", ("controlnet_blocks.6.weight",)),
        (
            CONTROLNET,
            "controlnet.6.copied_block.mlp.point_conv.conv.weight",
            ("transformer_blocks.6.ff.conv_point.weight",),
        ),
        (CONTROLNET, "blocks.0.attn.qkv.weight", ()),
        (VIDEO, "x_embedder.proj.bias", ("patch_embedding.bias",)),
        (VIDEO, "blocks.19.mlp.t_conv.weight", (f"{BLOCK}.ff.conv_temp.weight",)),
        (VIDEO, "blocks.19.attn.k_norm.weight", (f"{SELF}.norm_k.weight",)),
        (TRANSFORMER, "blocks.19.mlp.t_conv.weight", None),
        (AUTOENCODER, "encoder.project_in.conv.weight", ("encoder.conv_in.weight",)),
        (AUTOENCODER, "encoder.project_in.conv.conv.weight", ("encoder.conv_in.conv.weight",)),
        (AUTOENCODER, "decoder.project_out.op_list.0.bias", ("decoder.norm_out.bias",)),
        (
            AUTOENCODER,
            "decoder.project_out.op_list.2.conv.conv.bias",
            ("decoder.conv_out.conv.bias",),
        ),
        (
            AUTOENCODER,
            "encoder.stages.3.op_list.0.context_module.main.qkv.conv.weight",
            (f"{STAGE}.attn.to_q.weight", f"{STAGE}.attn.to_k.weight", f"{STAGE}.attn.to_v.weight"),
        ),
        (
            AUTOENCODER,
            "encoder.stages.3.op_list.0.context_module.main.aggreg.0.1.weight",
            (f"{STAGE}.attn.to_qkv_multiscale.0.proj_out.weight",),
        ),
        (
            AUTOENCODER,
            "encoder.stages.3.op_list.0.local_module.main.point_conv.norm.bias",
            (f"{STAGE}.conv_out.norm.bias",),
        ),
        (
            AUTOENCODER,
            "decoder.stages.1.op_list.0.main.conv.conv.weight",
            ("decoder.up_blocks.1.0.conv.weight",),
        ),
        (
            AUTOENCODER,
            "decoder.stages.1.op_list.2.main.conv2.norm.running_var",
            ("decoder.up_blocks.1.2.norm.running_var",),
        ),
    ],
)
def test_keys_of_the_original_checkpoints(table, key: str, targets) -> None:
    assert table.translate(key) == targets


def test_the_table_is_found_from_the_keys() -> None:
    assert find_map({"x_embedder.proj.weight": 0}) is TRANSFORMER
    assert find_map({"x_embedder.proj.weight": 0, "cfg_embedder.mlp.0.bias": 0}) is SPRINT
    assert find_map({"x_embedder.proj.weight": 0, "controlnet.0.before_proj.bias": 0}) is CONTROLNET
    assert find_map({"encoder.project_in.conv.conv.bias": 0}) is AUTOENCODER
    assert find_map({"x_embedder.proj.weight": 0, "blocks.0.mlp.t_conv.weight": 0}) is VIDEO
    assert find_map({"patch_embed.proj.weight": 0}) is None
