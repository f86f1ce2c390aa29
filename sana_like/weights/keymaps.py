"""Key maps from NVlabs' checkpoints to the published layout, as tables.

A rule maps the name of a module (its parameters follow) or of one tensor. `{n}` stands for an
index. Several targets mean that the tensor is cut into equal parts along its first axis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

Rules = Mapping[str, tuple[str, ...]]

_PARAMETER = r"(?P<parameter>\.(?:weight|bias|running_mean|running_var|num_batches_tracked))?"

_STEM: Rules = {
    "x_embedder.proj": ("patch_embed.proj",),
    "y_embedder.y_proj.fc1": ("caption_projection.linear_1",),
    "y_embedder.y_proj.fc2": ("caption_projection.linear_2",),
    "attention_y_norm": ("caption_norm",),
    "t_block.1": ("time_embed.linear",),
}
_TIME: Rules = {
    "t_embedder.mlp.0": ("time_embed.emb.timestep_embedder.linear_1",),
    "t_embedder.mlp.2": ("time_embed.emb.timestep_embedder.linear_2",),
}
# With an embedded guidance scale (Sprint) the level `emb` disappears.
_GUIDED_TIME: Rules = {
    "t_embedder.mlp.0": ("time_embed.timestep_embedder.linear_1",),
    "t_embedder.mlp.2": ("time_embed.timestep_embedder.linear_2",),
    "cfg_embedder.mlp.0": ("time_embed.guidance_embedder.linear_1",),
    "cfg_embedder.mlp.2": ("time_embed.guidance_embedder.linear_2",),
}
_BLOCK: Rules = {
    "scale_shift_table": ("scale_shift_table",),
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn.proj": ("attn1.to_out.0",),
    "attn.q_norm": ("attn1.norm_q",),
    "attn.k_norm": ("attn1.norm_k",),
    "cross_attn.q_linear": ("attn2.to_q",),
    "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
    "cross_attn.proj": ("attn2.to_out.0",),
    "cross_attn.q_norm": ("attn2.norm_q",),
    "cross_attn.k_norm": ("attn2.norm_k",),
    "mlp.inverted_conv.conv": ("ff.conv_inverted",),
    "mlp.depth_conv.conv": ("ff.conv_depth",),
    "mlp.point_conv.conv": ("ff.conv_point",),
}
_VIDEO_STEM: Rules = {**_STEM, "x_embedder.proj": ("patch_embedding",)}
_VIDEO_BLOCK: Rules = {**_BLOCK, "mlp.t_conv": ("ff.conv_temp",)}
_HEAD: Rules = {
    "final_layer.linear": ("proj_out",),
    "final_layer.scale_shift_table": ("scale_shift_table",),
}
_CONTROL: Rules = {
    "controlnet.0.before_proj": ("input_block",),
    "controlnet.{n}.after_proj": ("controlnet_blocks.{n}",),
}
_RESIDUAL: Rules = {
    "main.conv1.conv": ("conv1",),
    "main.conv2.conv": ("conv2",),
    "main.conv2.norm": ("norm",),
    "main.conv": ("conv",),
    "main.conv.conv": ("conv",),
    "context_module.main.qkv.conv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "context_module.main.aggreg.{k}.0": ("attn.to_qkv_multiscale.{k}.proj_in",),
    "context_module.main.aggreg.{k}.1": ("attn.to_qkv_multiscale.{k}.proj_out",),
    "context_module.main.proj.conv": ("attn.to_out",),
    "context_module.main.proj.norm": ("attn.norm_out",),
    "local_module.main.inverted_conv.conv": ("conv_out.conv_inverted",),
    "local_module.main.depth_conv.conv": ("conv_out.conv_depth",),
    "local_module.main.point_conv.conv": ("conv_out.conv_point",),
    "local_module.main.point_conv.norm": ("conv_out.norm",),
}
# The f64 and f128 shapes, and f32 without blocks in the first stage, resample at both ends.
_AUTOENCODER_ENDS: Rules = {
    "encoder.project_in.conv": ("encoder.conv_in",),
    "encoder.project_in.conv.conv": ("encoder.conv_in.conv",),
    "encoder.project_out.main.op_list.0.conv": ("encoder.conv_out",),
    "decoder.project_in.main.conv": ("decoder.conv_in",),
    "decoder.project_out.op_list.0": ("decoder.norm_out",),
    "decoder.project_out.op_list.2.conv": ("decoder.conv_out",),
    "decoder.project_out.op_list.2.conv.conv": ("decoder.conv_out.conv",),
}

# What inference never reads: the empty caption, the table of positions (computed anew), the
# variance head of training, and in a ControlNet's file the frozen transformer.
_UNUSED = ("y_embedder.y_embedding", "pos_embed", "logvar_linear")
_UNUSED_CONTROL = (*_UNUSED, "blocks", "final_layer")


def _under(source: str, target: str, rules: Rules) -> dict[str, tuple[str, ...]]:
    """The rules below a prefix on either side."""
    return {
        f"{source}.{key}": tuple(f"{target}.{name}" for name in names)
        for key, names in rules.items()
    }


@dataclass(frozen=True)
class KeyMap:
    """One table, ready for use.

    Attributes:
        class_name: the class whose published layout it leads to.
        rules: source to targets.
        unused: names whose tensors are dropped.
    """

    class_name: str
    rules: Rules = field(repr=False)
    unused: Sequence[str] = ()

    def translate(self, key: str) -> tuple[str, ...] | None:
        """Published keys for `key`: one, several for a tensor to be cut, none to drop it.

        Returns:
            None if the table does not know the key.
        """
        for name in self.unused:
            if key == name or key.startswith(name + "."):
                return ()
        for source, targets in self.rules.items():
            match = _pattern(source).fullmatch(key)
            if match:
                indices = {name: text for name, text in match.groupdict().items() if text}
                parameter = indices.pop("parameter", "")
                return tuple(target.format(**indices) + parameter for target in targets)
        return None


@cache
def _pattern(source: str) -> re.Pattern[str]:
    """A rule's source as an expression that also takes the name of a parameter after it."""
    text = re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(source))
    return re.compile(text + _PARAMETER)


_TRANSFORMER_BLOCKS = _under("blocks.{n}", "transformer_blocks.{n}", _BLOCK)

TRANSFORMER = KeyMap(
    "SanaTransformer2DModel",
    {**_STEM, **_TIME, **_TRANSFORMER_BLOCKS, **_HEAD},
    _UNUSED,
)
SPRINT = KeyMap(
    "SanaTransformer2DModel",
    {**_STEM, **_GUIDED_TIME, **_TRANSFORMER_BLOCKS, **_HEAD},
    _UNUSED,
)
VIDEO = KeyMap(
    "SanaVideoTransformer3DModel",
    {
        **_VIDEO_STEM,
        **_TIME,
        **_under("blocks.{n}", "transformer_blocks.{n}", _VIDEO_BLOCK),
        **_HEAD,
    },
    _UNUSED,
)
CONTROLNET = KeyMap(
    "SanaControlNetModel",
    {
        **_STEM,
        **_TIME,
        **_CONTROL,
        **_under("controlnet.{n}.copied_block", "transformer_blocks.{n}", _BLOCK),
    },
    _UNUSED_CONTROL,
)
AUTOENCODER = KeyMap(
    "AutoencoderDC",
    {
        **_AUTOENCODER_ENDS,
        **_under("encoder.stages.{s}.op_list.{j}", "encoder.down_blocks.{s}.{j}", _RESIDUAL),
        **_under("decoder.stages.{s}.op_list.{j}", "decoder.up_blocks.{s}.{j}", _RESIDUAL),
    },
)


def find_map(keys: Mapping[str, object]) -> KeyMap | None:
    """The table for a checkpoint with these keys; None if they are not NVlabs'."""
    if any(key.startswith("controlnet.") for key in keys):
        return CONTROLNET
    if "x_embedder.proj.weight" in keys:
        if any(".mlp.t_conv." in key for key in keys):
            return VIDEO
        guided = any(key.startswith("cfg_embedder.") for key in keys)
        return SPRINT if guided else TRANSFORMER
    if any(key.startswith(("encoder.project_in.", "decoder.project_in.")) for key in keys):
        return AUTOENCODER
    return None
