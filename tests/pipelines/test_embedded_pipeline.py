"""Pipelines of the zoo: by name, with an autoencoder and a text encoder named in the index."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from sana_like.text import TextSettings
from sana_like.weights import WeightsError
from sana_like_pipelines import SanaPipeline, fit_latent_rgb

SETTINGS = TextSettings(
    instruction="Picture:", max_sequence_length=20, rms_normalize=True, selection="prompt"
)


@pytest.fixture
def zoo(saved, tmp_path, monkeypatch):
    """A zoo with `tiny` and `tiny-ae`, and a text encoder cut as the embedded one is."""
    from sana_like import text
    from sana_like.weights import hub

    root = tmp_path / "zoo"
    stock = saved("sana").folder
    shutil.copytree(stock / "vae", root / "tiny-ae")
    for part in ("transformer", "scheduler"):
        shutil.copytree(stock / part, root / "tiny" / part)
    index = {
        "_class_name": "SanaPipeline",
        "transformer": ["diffusers", "SanaTransformer2DModel"],
        "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
        "vae": ["sana_like.zoo", "tiny-ae"],
        "text_encoder": ["sana_like.zoo", "smollm2"],
        "text_settings": SETTINGS.to_dict(),
    }
    (root / "tiny" / "model_index.json").write_text(json.dumps(index))
    monkeypatch.setattr(hub, "ZOO", root)

    def load(dtype=torch.float32, device="cpu"):
        from transformers import AutoTokenizer

        torch.manual_seed(5)
        config = LlamaConfig(
            vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, initializer_range=0.3,
        )  # fmt: skip
        model = LlamaModel(config).to(device, dtype).eval()
        model.norm = torch.nn.Identity()
        return AutoTokenizer.from_pretrained(stock / "tokenizer"), model

    monkeypatch.setattr(text, "load_smollm2", load, raising=False)
    return root


def picture(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe("a cat", generator=1, num_inference_steps=2, output_type="pt").images


def test_by_name(zoo):
    pipe = SanaPipeline.from_pretrained("tiny")
    assert pipe.text_settings == SETTINGS
    assert picture(pipe).shape == (1, 3, 32, 32), "the size of the training is the default"
    assert pipe.name_or_path == "tiny"
    assert isinstance(pipe.text_encoder.norm, torch.nn.Identity)


def test_name_wins_over_a_folder(zoo, tmp_path, monkeypatch):
    (tmp_path / "here" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert SanaPipeline.from_pretrained("tiny").transformer is not None


def test_dtype_reaches_every_part(zoo):
    pipe = SanaPipeline.from_pretrained("tiny", dtype=torch.bfloat16)
    parts = (pipe.text_encoder, pipe.transformer, pipe.vae)
    assert {part.dtype for part in parts} == {torch.bfloat16}
    assert picture(pipe).isfinite().all()


def test_saved_copy_keeps_the_embedded_text_encoder(zoo, tmp_path):
    pipe = SanaPipeline.from_pretrained("tiny")
    pipe.latent_rgb = fit_latent_rgb(pipe.vae, torch.rand(4, 3, 32, 32), patch=1)
    pipe.save_pretrained(tmp_path / "copy")
    index = json.loads((tmp_path / "copy" / "model_index.json").read_text())
    assert index["text_encoder"] == index["tokenizer"] == ["sana_like.zoo", "smollm2"]
    assert not (tmp_path / "copy" / "text_encoder").exists()
    again = SanaPipeline.from_pretrained(tmp_path / "copy")
    assert torch.equal(picture(again), picture(pipe))
    assert again.latent_rgb is not None


def test_unknown_embedded_parts(zoo):
    path = zoo / "tiny" / "model_index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index | {"text_encoder": ["sana_like.zoo", "gpt"]}))
    with pytest.raises(WeightsError, match="gpt"):
        SanaPipeline.from_pretrained("tiny")
    path.write_text(json.dumps(index | {"vae": ["sana_like.zoo", "other-ae"]}))
    with pytest.raises(WeightsError, match="other-ae"):
        SanaPipeline.from_pretrained("tiny")
