from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sana_like_train.__main__ import main
from sana_like_train.config import ConfigError
from sana_like_train.reading import dump, recipe_names, resolve


@pytest.mark.parametrize("name", recipe_names())
def test_the_recipes_that_come_with_the_package_are_valid_and_round_trip(
    name: str, tmp_path: Path
) -> None:
    recipe = resolve(name)
    path = tmp_path / "again.yaml"
    path.write_text(dump(recipe), encoding="utf-8")
    assert resolve(path) == recipe


def test_overrides_take_yaml_values() -> None:
    recipe = resolve(
        "emoji",
        [
            "train.lr=1e-3",
            "train.schedule.kind=constant",
            "train.schedule.decay_steps=0",
            "task.sample_prompts=[a, b]",
            "train.ema=null",
            "task.model.num_layers=3",
            "train.optimizer.betas=[0.9, 0.95]",
        ],
    )
    assert recipe.train.lr == 1e-3
    assert recipe.train.schedule.kind == "constant"
    assert recipe.train.ema is None
    assert recipe.task.model["num_layers"] == 3
    assert recipe.task.sample_prompts == ("a", "b")
    assert recipe.train.optimizer.betas == (0.9, 0.95)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.learning_rate=1", r"train\.learning_rate: unknown key"),
        ("train.max_step=1", "did you mean 'max_steps'"),
        ("train.schedule.warmup=1", "did you mean 'warmup_steps'"),
        ("task.caption_dropot=0", "did you mean 'caption_dropout'"),
        ("task.time.shfit=3", "did you mean 'shift'"),
        ("tain.lr=1", "did you mean 'train'"),
        ("train.lr=0", "greater than 0"),
        ("train.lr=.nan", "finite"),
        ("train.lr=fast", "valid number"),
        ("train.precision=fp16", "fp32"),
        ("train.max_steps=5", "exceed"),
        ("name=../x", "pattern"),
        ("train.lr", "section.key=value"),
        ("=1", "section.key=value"),
        ("train.lr.x=1", "is a value, not a section"),
        ("train.lr=[", "not YAML"),
    ],
)
def test_wrong_keys_and_values_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("emoji", [override])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML"),
        ("- 1", "mapping"),
        ("name: x\nname: y", "twice"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("", "mapping"),
        ("name: !!python/object:os.system x", "not valid YAML"),
        ("name: x", "task: Field required"),
    ],
)
def test_unusable_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve(path)


def test_missing_recipes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'emoji'"):
        resolve("emojy")
    with pytest.raises(ConfigError, match="cannot read"):
        resolve(tmp_path / "no.yaml")


def test_a_byte_order_mark_and_windows_line_ends_are_read(
    autoencoder_recipe: dict[str, Any], write_recipe: Callable[[dict[str, Any]], Path]
) -> None:
    path = write_recipe(autoencoder_recipe)
    plain = resolve(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert resolve(path) == plain


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(
    key=st.sampled_from(["name", "task", "data", "train", "task.model", "train.ema", "data.x"]),
    value=_VALUES,
)
def test_any_value_gives_a_recipe_or_a_config_error(
    key: str, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import yaml

    text = yaml.safe_dump(value).split("\n...")[0].strip()
    with contextlib.suppress(ConfigError):
        resolve("emoji", [f"{key}={text}"])


def test_print_config_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emoji-ae", "train.lr=5e-4", "--print-config"]) == 0
    assert "lr: 0.0005" in capsys.readouterr().out
    assert main(["emoji-ae", "train.lrr=5e-4"]) == 2
    assert "did you mean 'lr'" in capsys.readouterr().err
