"""The published video architectures: parameter totals, keys and shapes, without any memory."""

from __future__ import annotations

import diffusers
import pytest
import torch

from sana_like.presets import VIDEO_PRESETS, preset
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.transformers.video import SanaVideoTransformer3DModel
from sana_like.weights.model import published_state_dict

# The published totals, written down here once more on purpose.
EXPECTED = {
    "sana-video-2b-480p": 2_056_862_144,
    "sana-video-2b-720p": 2_057_148_928,
    "sana-video-2b-720p-dc-ae-v": 2_056_718_752,
}


def test_every_preset_is_expected():
    assert VIDEO_PRESETS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_totals_keys_and_shapes(name):
    with torch.device("meta"):
        model = SanaVideoTransformer3DModel.from_preset(name)
        reference = diffusers.SanaVideoTransformer3DModel(**preset(name).config())
    assert model.num_parameters() == preset(name).num_parameters == EXPECTED[name]
    shapes = {key: tuple(value.shape) for key, value in published_state_dict(model).items()}
    assert len(shapes) == 496
    assert shapes == {key: tuple(value.shape) for key, value in reference.state_dict().items()}
    assert shapes["transformer_blocks.7.ff.conv_temp.weight"] == (2240, 2240, 3, 1)


def test_class_defaults_are_diffusers_defaults():
    with torch.device("meta"):
        config = dict(SanaVideoTransformer3DModel().config)
        wanted = dict(diffusers.SanaVideoTransformer3DModel().config)
    for key in (key for key in wanted if not key.startswith("_")):
        assert config[key] == wanted[key], key
    assert config.keys() - wanted.keys() == SanaVideoTransformer3DModel._extension_keys.keys()


def test_state_of_the_480p_model_has_the_published_size():
    with torch.device("meta"):
        model = SanaVideoTransformer3DModel.from_preset("sana-video-2b-480p").bfloat16()
    per_block = model.state_bytes(60, 104) / 20
    # fp32 sums of 20 heads, and one bf16 frame of 30 x 52 tokens.
    assert per_block == 20 * 112 * 113 * 4 + 30 * 52 * 2240 * 2
    assert model.state_bytes(60, 104, batch=3) == 60 * per_block


def test_presets_of_other_classes_are_refused():
    with pytest.raises(ValueError, match="SanaVideoTransformer3DModel"):
        SanaTransformer2DModel.from_preset("sana-video-2b-480p")
    with pytest.raises(ValueError, match="another class"):
        SanaVideoTransformer3DModel.from_preset("sana-0.6b-512")
