"""What we save loads in plain diffusers, and the other way round, by any route alike."""

from __future__ import annotations

import json

import diffusers
import pytest
import torch

from sana_like.transformers.controlnet import SanaControlNetModel
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like.weights.errors import WeightsError

CASES = [
    {},
    {"qk_norm": "rms_norm_across_heads", "guidance_embeds": True},
    {"interpolation_scale": 2.0, "patch_size": 2},
]


@pytest.mark.parametrize("changes", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_round_trip_through_both_libraries(changes, dtype, narrow, shake, draw_inputs, tmp_path):
    model = shake(SanaTransformer2DModel(**narrow | changes)).to(dtype)
    inputs = draw_inputs(model, 6, 4).kwargs(dtype)
    wanted = model(**inputs).sample
    model.save_pretrained(tmp_path / "ours")
    again = SanaTransformer2DModel.from_pretrained(tmp_path / "ours")
    assert again.dtype == dtype
    assert torch.equal(again(**inputs).sample, wanted)

    theirs = diffusers.SanaTransformer2DModel.from_pretrained(tmp_path / "ours", torch_dtype=dtype)
    limit = 1e-5 if dtype == torch.float32 else 3e-2
    error = (theirs(**inputs).sample - wanted).float().norm() / wanted.float().norm()
    assert error <= limit
    theirs.save_pretrained(tmp_path / "theirs")
    back = SanaTransformer2DModel.from_pretrained(tmp_path / "theirs")
    assert torch.equal(back(**inputs).sample, wanted)


@torch.no_grad()
def test_loading_in_bf16_equals_casting_to_bf16(narrow, shake, draw_inputs, tmp_path):
    model = shake(SanaTransformer2DModel(**narrow | {"interpolation_scale": 2.0}))
    model.save_pretrained(tmp_path)
    inputs = draw_inputs(model, 5, 7).kwargs(torch.bfloat16)
    loaded = SanaTransformer2DModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    loaded_then_cast = SanaTransformer2DModel.from_pretrained(tmp_path).bfloat16()
    wanted = loaded(**inputs).sample
    assert torch.equal(loaded_then_cast(**inputs).sample, wanted)
    assert torch.equal(model.to(torch.bfloat16)(**inputs).sample, wanted)


def test_extension_keys_are_written_only_where_they_say_something(narrow, tmp_path):
    SanaTransformer2DModel(**narrow).save_pretrained(tmp_path / "plain")
    SanaTransformer2DModel(**narrow, attention_clip=65504.0).save_pretrained(tmp_path / "clipped")
    plain = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert "attention_clip" not in plain and plain["_class_name"] == "SanaTransformer2DModel"
    clipped = SanaTransformer2DModel.from_pretrained(tmp_path / "clipped")
    assert clipped.config.attention_clip == 65504.0


@torch.no_grad()
def test_controlnet_round_trip(narrow, shake, draw_inputs, tmp_path):
    model = shake(SanaControlNetModel(**narrow))
    inputs = draw_inputs(model, 4, 4).kwargs()
    del inputs["guidance"]
    inputs["controlnet_cond"] = torch.randn(2, 32, 4, 4)
    model.save_pretrained(tmp_path)
    theirs = diffusers.SanaControlNetModel.from_pretrained(tmp_path)
    again = SanaControlNetModel.from_pretrained(tmp_path)
    for ours, same, other in zip(
        model(**inputs)[0], again(**inputs)[0], theirs(**inputs)[0], strict=True
    ):
        assert torch.equal(ours, same)
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


def test_safe_serialization_is_accepted_and_pickles_are_refused(narrow, tmp_path):
    model = SanaTransformer2DModel(**narrow)
    model.save_pretrained(tmp_path, safe_serialization=True)
    with pytest.raises(WeightsError, match="safe_serialization=False"):
        model.save_pretrained(tmp_path / "pickled", safe_serialization=False)
    assert not (tmp_path / "pickled").exists()


@torch.no_grad()
def test_config_keys_can_be_changed_while_loading(narrow, shake, draw_inputs, tmp_path):
    model = shake(SanaTransformer2DModel(**narrow))
    inputs = draw_inputs(model, 3, 3).kwargs()
    model.save_pretrained(tmp_path)
    clipped = SanaTransformer2DModel.from_pretrained(tmp_path, attention_clip=0.01)
    assert clipped.config.attention_clip == 0.01
    assert not torch.equal(clipped(**inputs).sample, model(**inputs).sample)
    wide = SanaTransformer2DModel.from_pretrained(tmp_path, attention_clip=65504)
    assert torch.equal(wide(**inputs).sample, model(**inputs).sample)
    for change, message in [
        ({"attention_klip": 1.0}, "did you mean 'attention_clip'"),
        ({"attention_clip": "1"}, "attention_clip='1' must be of type"),
        ({"num_layers": 3}, "does not fit"),
    ]:
        with pytest.raises(WeightsError, match=message):
            SanaTransformer2DModel.from_pretrained(tmp_path, **change)
