"""`sana-like generate` and `rerun` on a tiny random model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sana_like_pipelines.media import read_recipe

Cli = Callable[..., Any]
QUICK = ("--steps", 2)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_one_picture_and_its_recipe(cli: Cli, sana: Path, tmp_path: Path) -> None:
    done = cli("generate", "a fox", "--model", sana, "--seed", 7, "--output", "a.png", *QUICK)
    assert done.code == 0, done.err
    assert done.paths == [Path("a.png")]
    assert "seed 7" in done.err and "off: " in done.err
    picture = Image.open(tmp_path / "a.png")
    assert (picture.mode, picture.size) == ("RGB", (32, 32))
    assert any(high - low > 8 for low, high in picture.getextrema())
    recipe = read_recipe(tmp_path / "a.png")
    assert (recipe["prompt"], recipe["seed"]) == ("a fox", 7)
    assert recipe["settings"]["num_inference_steps"] == 2
    assert recipe["run"]["weights"][str(sana)]
    assert json.loads((tmp_path / "a.png.json").read_text("utf-8")) == recipe
    assert names(tmp_path) == ["a.png", "a.png.json"]


def test_rerun_gives_the_same_bytes(cli: Cli, sana: Path, tmp_path: Path) -> None:
    cli(
        "generate", "a fox", "a cat", "--model", sana, "--seed", 3, "--count", 2, "--output", "out",
        "--size", "40x33", "--guidance-scale", 3, "--guidance-interval", "0:0.9",
        "--negative-prompt", "blue", "--scheduler", "flow-euler", *QUICK,
    )  # fmt: skip
    files = sorted(tmp_path.glob("out/*.png"))
    assert [file.name for file in files] == [
        "a-cat-5.png",
        "a-cat-6.png",
        "a-fox-3.png",
        "a-fox-4.png",
    ]
    for file in files:
        again = cli("rerun", file, "--output", "again.png")
        assert again.code == 0, again.err
        first, second = Image.open(file), Image.open(tmp_path / "again.png")
        assert first.size == (40, 33)
        assert first.tobytes() == second.tobytes()
    assert cli("rerun", f"{files[0]}.json").paths == [files[0].with_name("a-cat-5-again.png")]
    from_sidecar = cli("rerun", f"{files[0]}.json", "--output", "again.png", "--no-metadata")
    assert from_sidecar.code == 0, from_sidecar.err
    assert Image.open(tmp_path / "again.png").tobytes() == Image.open(files[0]).tobytes()


def test_rerun_refuses_other_weights(cli: Cli, sana: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(sana, copy)
    cli("generate", "a fox", "--model", copy, "--seed", 1, "--output", "a.png", *QUICK)
    config = copy / "scheduler" / "scheduler_config.json"
    config.write_text(config.read_text().replace('"flow_shift": 3.0', '"flow_shift": 2.0'))
    refused = cli("rerun", "a.png", "--output", "b.png")
    assert refused.code == 1
    assert "not those of the recipe" in refused.err and "--force" in refused.err
    assert not (tmp_path / "b.png").exists()
    forced = cli("rerun", "a.png", "--output", "b.png", "--force")
    assert forced.code == 0, forced.err


def test_every_picture_has_its_own_seed_and_batches_agree(
    cli: Cli, sana: Path, tmp_path: Path
) -> None:
    one = ("generate", "a fox", "--model", sana, "--seed", 9, "--count", 3, *QUICK)
    assert cli(*one, "--output", "alone").code == 0
    assert cli(*one, "--output", "batch", "--batch-size", 2).code == 0
    for seed in (9, 10, 11):
        alone = tmp_path / "alone" / f"a-fox-{seed}.png"
        batch = tmp_path / "batch" / f"a-fox-{seed}.png"
        assert read_recipe(batch)["seed"] == seed
        pairs = zip(Image.open(alone).tobytes(), Image.open(batch).tobytes(), strict=True)
        assert max(abs(a - b) for a, b in pairs) <= 1


def test_a_seed_is_drawn_and_printed(cli: Cli, sana: Path, tmp_path: Path) -> None:
    done = cli("generate", "a fox", "--model", sana, "--output", "a.png", *QUICK)
    assert f"seed {read_recipe(tmp_path / 'a.png')['seed']}" in done.err


def test_contact_sheet_preview_and_no_metadata(cli: Cli, sana: Path, tmp_path: Path) -> None:
    done = cli(
        "generate", "a fox", "--model", sana, "--count", 2, "--output", "a.png", "--contact-sheet",
        "--preview", 1, "--no-metadata", *QUICK,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert names(tmp_path) == ["a-1.png", "a-2.png", "a-sheet.png"]
    assert Image.open(tmp_path / "a-sheet.png").width > 64
    assert not Image.open(tmp_path / "a-1.png").info.get("sana_like")
    assert cli("rerun", "a-1.png").code == 1


def test_image_to_image_and_inpainting(cli: Cli, sana: Path, tmp_path: Path) -> None:
    Image.new("RGB", (48, 40), (200, 30, 90)).save(tmp_path / "in.png")
    mask = Image.new("L", (48, 40), 0)
    mask.paste(255, (0, 0, 24, 40))
    mask.save(tmp_path / "mask.png")
    start = ("generate", "a fox", "--model", sana, "--image", "in.png", "--seed", 1, *QUICK)
    assert cli(*start, "--strength", 0.5, "--output", "a.png").code == 0
    assert Image.open(tmp_path / "a.png").size == (48, 40)
    done = cli(*start, "--mask", "mask.png", "--output", "b.png")
    assert done.code == 0, done.err
    painted = Image.open(tmp_path / "b.png")
    assert painted.getpixel((40, 20)) == (200, 30, 90), "kept where the mask is black"
    assert painted.crop((0, 0, 24, 40)).getcolors(1) is None
    assert cli("rerun", "b.png", "--output", "c.png").code == 0
    assert Image.open(tmp_path / "c.png").tobytes() == painted.tobytes()
    Image.new("RGB", (48, 40), "green").save(tmp_path / "in.png")
    changed = cli("rerun", "b.png", "--output", "d.png")
    assert changed.code == 1 and "not the one that went in" in changed.err


def test_control(cli: Cli, folders: Callable[[str], Path], tmp_path: Path) -> None:
    Image.linear_gradient("L").resize((32, 32)).save(tmp_path / "sketch.png")
    done = cli(
        "generate", "a fox", "--model", folders("controlnet"), "--control", "sketch.png",
        "--control-scale", 0.5, "--seed", 1, "--output", "a.png", *QUICK,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert cli("rerun", "a.png", "--output", "b.png").code == 0
    assert Image.open("a.png").tobytes() == Image.open("b.png").tobytes()


def test_sprint_is_recognised(cli: Cli, folders: Callable[[str], Path], tmp_path: Path) -> None:
    model = folders("sprint")
    done = cli("generate", "a fox", "--model", model, "--seed", 1, "--output", "a.png")
    assert done.code == 0, done.err
    assert read_recipe(tmp_path / "a.png")["pipeline"] == "SanaSprintPipeline"
    refused = cli("generate", "a fox", "--model", model, "--negative-prompt", "x")
    assert refused.code == 1 and "--negative-prompt" in refused.err


def test_a_black_picture_is_no_success(cli: Cli, sana: Path, tmp_path: Path) -> None:
    """Weights that give NaN end in a named stage, exit code 1 and no file."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "model"
    shutil.copytree(sana, copy)
    (weights,) = (copy / "transformer").glob("*.safetensors")
    tensors = load_file(weights)
    name = next(key for key in tensors if key.startswith("transformer_blocks.1.attn1.to_q"))
    tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, weights, metadata={"format": "pt"})
    done = cli("generate", "a fox", "--model", copy, "--output", "a.png", *QUICK)
    assert done.code == 1
    assert "step 1 of 2" in done.err or "NaN" in done.err
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--size", "0x512"), 1, "nearest multiple of 32"),
        (("--size=-64x512",), 1, "width -64"),
        (("--size", "512.0x512"), 1, "no whole number"),
        (("--width", "512.0"), 2, "no whole number"),
        (("--size", "32x32", "--width", "32"), 1, "not both"),
        (("--steps", "0"), 1, "steps is 0"),
        (("--count", "0"), 1, "count is 0"),
        (("--seed", "-1"), 1, "seed -1"),
        (("--seed", "99999999999999999999"), 2, "no whole number"),
        (("--guidance-scale", "nan"), 1, "guidance scale is nan"),
        (("--image", "missing.png"), 1, "missing.png"),
        (("--lora", "missing.safetensors:0.5"), 1, "missing.safetensors"),
        (("--device", "gpu"), 1, "legal are auto, cpu"),
        (("--device", "cpu", "--dtype", "fp16"), 1, "fp16 is not for CPUs"),
        (("--device", "cpu", "--offload", "model"), 1, "leave it out"),
        (("--output", "a.gif"), 1, ".png"),
        (("--preview", "0"), 1, "--preview is 0"),
        (("--colour", "red"), 2, "No such option"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_loaded(
    cli: Cli, options: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    # The model does not exist: whoever gets as far as loading it fails with another message.
    done = cli("generate", "a fox", "--model", "no/such/model", *options)
    assert done.code == code
    assert message in " ".join(done.err.replace("│", " ").split())
    if code == 1:
        assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_no_prompt_is_wrong_usage(cli: Cli) -> None:
    assert cli("generate").code == 2


def test_a_full_disk_leaves_nothing(
    cli: Cli, sana: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    done = cli("generate", "a fox", "--model", sana, "--output", "out/a.png", *QUICK)
    assert done.code == 1 and "No space left" in done.err
    assert not list((tmp_path / "out").iterdir())
