"""Options that make `generate` faster, `--prompts-file`, and what recipes keep of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sana_like_app.diagnostics import report
from sana_like_app.recipes import RecipeError, read_plan
from sana_like_app.request import PictureRequest, read_prompts
from sana_like_app.speed import Speed
from sana_like_pipelines.media import read_recipe

Cli = Callable[..., Any]
QUICK = ("--steps", 3, "--seed", 1)


def test_cache_and_passes_reach_the_recipe(cli: Cli, sana: Path, tmp_path: Path) -> None:
    done = cli(
        "generate", "a fox", "--model", sana, "--output", "a.png", "--cache-threshold", 5,
        "--guidance-passes", "sequential", *QUICK,
    )  # fmt: skip
    assert done.code == 0, done.err
    recipe = read_recipe(tmp_path / "a.png")
    assert recipe["settings"]["guidance_passes"] == "sequential"
    assert recipe["first_block_cache"]["passes_skipped"] == 2
    again = cli("rerun", "a.png", "--output", "b.png")
    assert again.code == 0, again.err
    assert Image.open("a.png").tobytes() == Image.open("b.png").tobytes()


def test_quantised_pictures_are_made_again_quantised(cli: Cli, sana: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    start = ("generate", "a fox", "--model", sana, *QUICK)
    done = cli(*start, "--output", "a.png", "--quantize", "int8-weights")
    assert done.code == 0, done.err
    assert read_recipe(tmp_path / "a.png")["speed"] == {"quantize": "int8-weights"}
    assert cli(*start, "--output", "plain.png").code == 0
    assert cli("rerun", "a.png", "--output", "b.png").code == 0
    pictures = [Image.open(name).tobytes() for name in ("a.png", "b.png", "plain.png")]
    assert pictures[0] == pictures[1] != pictures[2]


def test_a_backend_of_another_machine_can_be_replaced(cli: Cli, sana: Path, tmp_path: Path) -> None:
    cli("generate", "a fox", "--model", sana, "--output", "a.png", *QUICK)
    sidecar = tmp_path / "a.png.json"
    recipe = json.loads(sidecar.read_text("utf-8")) | {"speed": {"attention_backend": "flash"}}
    sidecar.write_text(json.dumps(recipe), "utf-8")
    refused = cli("rerun", sidecar, "--output", "b.png")
    assert refused.code == 1 and "legal on cpu: native" in refused.err
    done = cli("rerun", sidecar, "--output", "b.png", "--attention-backend", "native")
    assert done.code == 0, done.err


def test_graphs_are_not_asked_of_a_rerun(sana: Path, cli: Cli, tmp_path: Path) -> None:
    cli("generate", "a fox", "--model", sana, "--output", "a.png", *QUICK)
    sidecar = tmp_path / "a.png.json"
    recipe = json.loads(sidecar.read_text("utf-8"))
    sidecar.write_text(json.dumps(recipe | {"speed": {"compile": True, "cuda_graphs": True}}))
    assert read_plan(sidecar).setup.speed == Speed(compile=True)
    sidecar.write_text(json.dumps(recipe | {"speed": {"quantize": 8}}))
    with pytest.raises(RecipeError, match="quantize"):
        read_plan(sidecar)


def test_compiling_is_reported(
    cli: Cli, sana: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sana_like import SanaTransformer2DModel

    compile_blocks = SanaTransformer2DModel.compile_repeated_blocks
    monkeypatch.setattr(
        SanaTransformer2DModel,
        "compile_repeated_blocks",
        lambda self: compile_blocks(self, backend="eager"),
    )
    done = cli(
        "generate", "a fox", "--model", sana, "--count", 2, "--output", "out", "--compile", *QUICK
    )
    assert done.code == 0, done.err
    assert done.err.count("compiling took") == 1 and "per evaluation" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cache-threshold", "0"), "cache threshold is 0"),
        (("--cache-threshold", "nan"), "cache threshold is nan"),
        (("--guidance-passes", "two"), "legal are auto, batched, sequential"),
        (("--quantize", "int4"), "legal on cpu: int8, int8-weights, fp8-weights"),
        (("--quantize", "fp8"), "need a GPU"),
        (("--attention-backend", "flash"), "legal on cpu: native"),
        (("--cuda-graphs",), "needs a CUDA device"),
        (("--prompts-file", "missing.txt"), "missing.txt"),
    ],
)
def test_what_cannot_be_done_is_refused(
    cli: Cli, sana: Path, options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = cli("generate", "a fox", "--model", sana, "--device", "cpu", *options)
    assert done.code == 1 and message in done.err
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_sprint_has_nothing_to_skip_and_reads_pictures(
    cli: Cli, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    model = folders("sprint")
    refused = cli("generate", "a fox", "--model", model, "--cache-threshold", 0.1)
    assert refused.code == 1 and "--cache-threshold" in refused.err
    Image.new("RGB", (48, 40), (200, 30, 90)).save(tmp_path / "in.png")
    done = cli(
        "generate", "a fox", "--model", model, "--image", "in.png", "--output", "a.png", "--seed", 1
    )
    assert done.code == 0, done.err
    assert read_recipe(tmp_path / "a.png")["pipeline"] == "SanaSprintImg2ImgPipeline"
    assert Image.open("a.png").size == (48, 40)
    assert cli("rerun", "a.png", "--output", "b.png").code == 0
    assert Image.open("a.png").tobytes() == Image.open("b.png").tobytes()


def test_prompts_of_a_file_follow_those_of_the_line(cli: Cli, sana: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("\ufeffa cat\n\n  \n  ein Häuschen \n", "utf-8")
    start = ("generate", "--model", sana, "--prompts-file", "prompts.txt", "--steps", 1)
    assert cli(*start, "a fox", "--seed", 4, "--output", "out").code == 0
    made = {
        read_recipe(file)["seed"]: read_recipe(file)["prompt"]
        for file in tmp_path.glob("out/*.png")
    }
    assert made == {4: "a fox", 5: "a cat", 6: "ein Häuschen"}
    assert cli(*start, "--output", "alone").code == 0
    assert len(list(tmp_path.glob("alone/*.png"))) == 2


def test_files_that_hold_no_prompts(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="holds no prompt"):
        read_prompts(tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"H\xe4uschen\n")
    with pytest.raises(ValueError, match="no UTF-8 text"):
        read_prompts(tmp_path / "latin.txt")
    with pytest.raises(ValueError, match="no file"):
        read_prompts(tmp_path)


def test_weights_that_move_are_not_quantised() -> None:
    import torch

    from sana_like_app.setup import Placement

    moving = Placement(device=torch.device("cpu"), dtype=torch.float32, offload="group")
    with pytest.raises(ValueError, match="--quantize needs weights that stay"):
        Speed(quantize="int8-weights").check(moving)
    assert Speed().chosen() == {} and PictureRequest(prompts=("a",), seed=0).speed == Speed()


def test_doctor_lists_what_can_be_asked_for() -> None:
    facts = {fact.subject: fact.statement for fact in report()}
    assert facts["attention"].startswith("--attention-backend native, ")
    assert "off: " in facts["attention"] and "flash" in facts["attention"]
    assert facts["quantise"].startswith("--quantize int8, ")
