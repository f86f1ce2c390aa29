from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from sana_like_pipelines.pixels import to_pil
from sana_like_train.data.prompts import make_prompt_list
from sana_like_train.data.records import load_records
from sana_like_train.data.split import make_split
from sana_like_train.evaluate import emoji, features, run


class ColourFeatures(nn.Module):
    """Mean colours of a picture's quarters, enough to tell the test's pictures apart."""

    def forward(self, pictures: Tensor) -> Tensor:
        means = F.adaptive_avg_pool2d(pictures, 2).flatten(1)
        # The constant lets the cosine see how bright a colour is, not its hue alone.
        return F.normalize(torch.cat([means, torch.ones(len(means), 1)], dim=1), dim=1)


class Identity(nn.Module):
    """An autoencoder that loses nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def encode(self, pictures: Tensor) -> SimpleNamespace:
        return SimpleNamespace(latent=pictures)

    def decode(self, latent: Tensor) -> SimpleNamespace:
        return SimpleNamespace(sample=latent)


class Painter:
    """A pipeline that knows the pack by heart; it fails after `budget` pictures."""

    def __init__(self, records, answer: Callable[[str], str] = lambda prompt: prompt) -> None:
        self.by_prompt = {f"{record.label}, {record.style}": record for record in records}
        self.answer = answer
        self.vae = Identity()
        self.asked: list[tuple[str, int]] = []
        self.budget = 10_000

    def set_progress_bar_config(self, *, disable: bool) -> None:
        assert disable

    def __call__(self, prompts: list[str], *, generator: list[int], **kwargs) -> SimpleNamespace:
        assert kwargs == {
            "height": 32,
            "width": 32,
            "num_inference_steps": 3,
            "guidance_scale": 2.0,
        }
        self.budget -= len(prompts)
        if self.budget < 0:
            raise KeyboardInterrupt
        self.asked += zip(prompts, generator, strict=True)
        pictures = [self.by_prompt[self.answer(prompt)].open_picture() for prompt in prompts]
        return SimpleNamespace(images=to_pil(torch.stack(pictures) / 2 + 0.5))


@pytest.fixture
def stage(
    emoji_pack: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    pack = emoji_pack(30)
    records = load_records(pack)
    prompts = make_prompt_list(
        records, make_split(records, seed=0), steps=3, guidance=2.0, size=32, count=10
    )
    (tmp_path / "prompts.json").write_text(prompts.to_json())
    model = tmp_path / "model"
    model.mkdir()
    (model / "model_index.json").write_text("{}")
    save_file({"w": torch.ones(2)}, model / "model.safetensors")
    painter = Painter(records)
    monkeypatch.setattr(emoji, "FeatureExtractor", ColourFeatures)
    monkeypatch.setattr(features, "user_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(features, "FEATURE_WIDTH", 13)
    monkeypatch.setattr(
        emoji, "SanaPipeline", SimpleNamespace(from_pretrained=lambda folder, **_: painter)
    )

    def evaluate(**kwargs) -> dict:
        arguments = {"batch_size": 4, "prompts": tmp_path / "prompts.json", **kwargs}
        return emoji.evaluate_emoji(model, pack, tmp_path / "out", **arguments)

    return SimpleNamespace(
        evaluate=evaluate, painter=painter, output=tmp_path / "out", model=model, prompts=prompts
    )


def test_a_model_that_knows_everything_reaches_every_bar(stage: SimpleNamespace) -> None:
    report = stage.evaluate()
    assert all(report["reached"].values())
    for part, count in (("seen", 10), ("composition", 3), ("unseen", 4)):
        assert report[part]["generated"] == report[part]["reconstructions"]
        assert report[part]["concept_top5_ratio"] == 1.0
        assert report[part]["generated"]["count"] == count
        assert (stage.output / f"emoji-{part}.png").is_file()
    assert report["seen"]["generated"]["shuffled_concept_top5"] < 0.8
    assert json.loads((stage.output / "emoji.json").read_text()) == report
    assert len(report["weights_sha256"]["pipeline"]) == 64
    listed = stage.prompts.seen + stage.prompts.composition + stage.prompts.unseen
    assert sorted(stage.painter.asked) == sorted((entry.prompt, entry.seed) for entry in listed)


def test_a_model_that_ignores_its_prompts_reaches_none(stage: SimpleNamespace) -> None:
    stage.painter.answer = lambda prompt: "thing 7, noto"
    report = stage.evaluate()
    assert not report["reached"]["seen_concept"]
    assert not report["reached"]["seen_style"]
    own, others = (
        report["seen"]["generated"][f"{prefix}concept_top5"] for prefix in ("", "shuffled_")
    )
    assert own == pytest.approx(others, abs=0.11)


def test_a_stopped_evaluation_goes_on(stage: SimpleNamespace) -> None:
    stage.painter.budget = 9
    with pytest.raises(KeyboardInterrupt):
        stage.evaluate()
    assert not (stage.output / "emoji.json").exists()
    before = list(stage.painter.asked)
    assert len(before) == 8
    stage.painter.budget = 10_000
    done: list[tuple[int, int]] = []
    stage.evaluate(progress=lambda now, total: done.append((now, total)))
    assert len(set(stage.painter.asked)) == len(stage.painter.asked) == 17
    assert done[0] == (12, 17)
    assert done[-1] == (17, 17)


def test_other_weights_are_drawn_anew(stage: SimpleNamespace) -> None:
    first = stage.evaluate(limit=2)
    assert len(stage.painter.asked) == 6
    stage.evaluate(limit=2)
    assert len(stage.painter.asked) == 6
    save_file({"w": torch.zeros(2)}, stage.model / "model.safetensors")
    second = stage.evaluate(limit=2)
    assert len(stage.painter.asked) == 12
    assert first["weights_sha256"] != second["weights_sha256"]


def test_a_pack_without_the_pictures_is_refused(
    stage: SimpleNamespace, emoji_pack: Callable[..., Path]
) -> None:
    with pytest.raises(ValueError, match="lacks"):
        emoji.evaluate_emoji(stage.model, emoji_pack(3, name="few.tar"), stage.output)


def test_unknown_evaluations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="emoji, autoencoder, video-autoencoder"):
        run("other", output=tmp_path)
