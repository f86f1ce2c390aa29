"""Published architectures: parameter totals, keys and shapes, without any memory."""

from __future__ import annotations

import dataclasses

import diffusers
import pytest
import torch

from sana_like.presets import CONTROLNET_PRESETS, TRANSFORMER_PRESETS, preset
from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.weights.model import published_state_dict

# (parameters, keys); the published totals, written down here once more on purpose.
EXPECTED = {
    "sana-0.6b-512": (591_747_872, 548),
    "sana-0.6b-1024": (591_747_872, 548),
    "sana-1.6b-512": (1_604_462_752, 396),
    "sana-1.6b-1024": (1_604_462_752, 396),
    "sana-1.6b-2k": (1_604_462_752, 396),
    "sana-1.6b-4k": (1_604_462_752, 396),
    "sana-1.5-1.6b-1024": (1_604_641_952, 476),
    "sana-1.5-2.4b-1024": (2_383_937_952, 706),
    "sana-1.5-3.2b-1024": (3_163_233_952, 936),
    "sana-1.5-4.8b-1024": (4_721_825_952, 1396),
    "sana-sprint-0.6b-1024": (593_501_216, 664),
    "sana-sprint-1.6b-1024": (1_610_237_472, 480),
    "sana-controlnet-0.6b-1024": (168_765_696, 162),
    "sana-controlnet-1.6b-1024": (631_576_960, 162),
}
PRESETS = TRANSFORMER_PRESETS | CONTROLNET_PRESETS


def test_every_preset_is_expected():
    assert PRESETS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_totals_keys_and_shapes(name):
    control = name in CONTROLNET_PRESETS
    ours = SanaControlNetModel if control else SanaTransformer2DModel
    theirs = diffusers.SanaControlNetModel if control else diffusers.SanaTransformer2DModel
    with torch.device("meta"):
        model = ours.from_preset(name)
        # The table of positions is no part of the state dict and slow to compute.
        reference = theirs(**preset(name).config() | {"interpolation_scale": None})
    parameters, keys = EXPECTED[name]
    assert model.num_parameters() == preset(name).num_parameters == parameters
    shapes = {key: tuple(value.shape) for key, value in published_state_dict(model).items()}
    assert len(shapes) == keys
    assert shapes == {key: tuple(value.shape) for key, value in reference.state_dict().items()}


def test_class_defaults_are_diffusers_defaults():
    for ours, theirs in [
        (SanaTransformer2DModel, diffusers.SanaTransformer2DModel),
        (SanaControlNetModel, diffusers.SanaControlNetModel),
    ]:
        with torch.device("meta"):
            config, wanted = dict(ours().config), dict(theirs().config)
        for key in (key for key in wanted if not key.startswith("_")):
            assert config[key] == wanted[key], key
        extra = config.keys() - wanted.keys()
        assert extra == ours._extension_keys.keys()
        assert all(config[key] == ours._extension_keys[key] for key in extra)


def test_presets_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        preset("sana-0.6b-512").num_layers = 3
    changed = preset("sana-0.6b-512").config()
    changed["num_layers"] = 3
    assert preset("sana-0.6b-512").config()["num_layers"] == 28


def test_unknown_or_unfitting_names_are_refused():
    with pytest.raises(ValueError, match="sana-sprint"):
        preset("sana-9b")
    with pytest.raises(ValueError, match="another class"):
        SanaTransformer2DModel.from_preset("sana-controlnet-0.6b-1024")
    with pytest.raises(ValueError, match="another class"):
        SanaControlNetModel.from_preset("sana-0.6b-1024")
