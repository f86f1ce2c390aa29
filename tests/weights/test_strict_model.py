"""Loading and saving models: strictness, layout, dtype, tables, shards, config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sana_like.weights.errors import WeightsError
from sana_like.weights.model import published_state_dict
from sana_like.weights.strict import WeightsReader

WEIGHTS = "diffusion_pytorch_model.safetensors"


def equal(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    mine, theirs = left.state_dict(), right.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("options", [{}, {"max_shard_size": 200}, {"variant": "fp16"}])
def test_a_saved_model_loads_bit_for_bit(tmp_path: Path, tiny_class, options) -> None:
    model = tiny_class(num_layers=3)
    model.norm.running_mean.normal_()
    model.save_pretrained(tmp_path, **options)
    variant = {"variant": options["variant"]} if "variant" in options else {}
    loaded = tiny_class.from_pretrained(tmp_path, **variant)
    assert equal(model, loaded)
    assert torch.equal(model.table, loaded.table)
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_pointwise_weights_are_four_dimensional_in_the_file_only(tiny_folder, tiny_class) -> None:
    stored = load_file(tiny_folder / WEIGHTS)
    assert stored["expand.weight"].shape == (16, 8, 1, 1)
    model = tiny_class.from_pretrained(tiny_folder)
    assert model.expand.weight.shape == (16, 8)
    assert published_state_dict(model)["expand.weight"].shape == (16, 8, 1, 1)


def test_a_two_dimensional_pointwise_weight_is_accepted(tiny_folder, tiny_class) -> None:
    stored = load_file(tiny_folder / WEIGHTS)
    stored["expand.weight"] = stored["expand.weight"].flatten(1)
    save_file(stored, tiny_folder / WEIGHTS)
    assert tiny_class.from_pretrained(tiny_folder).expand.weight.shape == (16, 8)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16, "torch.bfloat16"])
def test_dtype_casts_parameters_and_never_tables(tiny_folder, tiny_class, dtype) -> None:
    reference = tiny_class()
    for options in ({"dtype": dtype}, {"torch_dtype": dtype}):
        model = tiny_class.from_pretrained(tiny_folder, **options)
        assert model.expand.weight.dtype == torch.bfloat16
        assert model.norm.num_batches_tracked.dtype == torch.int64
        assert model.table.dtype == torch.float32
        assert torch.equal(model.table, reference.table)


def test_every_route_to_a_dtype_gives_the_same_tensors(tiny_folder, tiny_class) -> None:
    direct = tiny_class.from_pretrained(tiny_folder, dtype=torch.bfloat16)
    cast = tiny_class.from_pretrained(tiny_folder).to(torch.bfloat16)
    nested = torch.nn.ModuleList([tiny_class.from_pretrained(tiny_folder)]).bfloat16()[0]
    there_and_back = tiny_class.from_pretrained(tiny_folder).half().float().bfloat16()
    for other in (cast, nested, there_and_back):
        assert torch.equal(direct.table, other.table)
        assert other.table.dtype == torch.float32
    assert equal(direct, cast)
    assert equal(direct, nested)


def test_tables_move_between_devices(tiny_class) -> None:
    assert tiny_class().to("meta").table.is_meta
    assert tiny_class().to("meta", torch.bfloat16).table.dtype == torch.float32


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "int8"},
        {"dtype": "float99"},
        {"dtype": torch.int32},
        {"dtype": torch.float16, "torch_dtype": torch.float32},
        {"subfolder": "../other"},
        {"subfolder": "/etc"},
    ],
)
def test_illegal_arguments_are_refused(tiny_folder, tiny_class, options) -> None:
    with pytest.raises(WeightsError):
        tiny_class.from_pretrained(tiny_folder, **options)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda s: s.pop("depth.weight"), r"1 missing: depth\.weight"),
        (lambda s: s.update(more=torch.ones(1)), "1 unexpected: more"),
        (
            lambda s: s.update({"depth.bias": torch.ones(7)}),
            r"depth\.bias expected \[8\], found \[7\]",
        ),
        (
            lambda s: s.update({"expand.weight": torch.ones(8, 16, 1, 1)}),
            r"expected \[16, 8, 1, 1\], found \[8, 16, 1, 1\]",
        ),
        (lambda s: s.update({"depth.bias": torch.ones(8).int()}), "expected torch.float32"),
        (
            lambda s: [s.update({f"model.{key}": s.pop(key)}) for key in list(s)],
            "0 tensors match.*another model",
        ),
    ],
)
def test_weights_match_in_both_directions_or_not_at_all(
    tiny_folder, tiny_class, change, part
) -> None:
    stored = load_file(tiny_folder / WEIGHTS)
    change(stored)
    save_file(stored, tiny_folder / WEIGHTS)
    with pytest.raises(WeightsError, match=part) as caught:
        tiny_class.from_pretrained(tiny_folder)
    assert str(tiny_folder / WEIGHTS) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (
            {"_class_name": "AutoencoderDC"},
            "describes a 'AutoencoderDC'; expected TinyModel",
        ),
        ({"_class_name": None}, "describes a None"),
        ({"widht": 8}, "TinyModel has no key 'widht'; did you mean 'width'"),
        ({"zzz": 8}, "legal: width, num_layers, extra_gain"),
        ({"quantization_config": {}}, "quantised by another library"),
        ({"width": "many"}, "width='many' must be of type int"),
        ({"width": -4}, "does not describe a TinyModel"),
        ({"num_layers": 10**9}, "asks for 1000000000 layers, the weights hold"),
        ({"width": 9}, "misfit"),
        ({"width": True}, "width='True' must be of type int"),
        ({"extra_gain": [1.0]}, r"extra_gain='\[1.0\]' must be of type float \| None"),
    ],
)
def test_the_config_is_checked(tiny_folder, tiny_class, changes, part) -> None:
    edit_config(tiny_folder, **changes)
    with pytest.raises(WeightsError, match=part):
        tiny_class.from_pretrained(tiny_folder)


def test_a_missing_config_names_the_models_inside(tiny_folder, tiny_class) -> None:
    with pytest.raises(WeightsError, match="Models inside it: model; choose one with subfolder"):
        tiny_class.from_pretrained(tiny_folder.parent)
    assert tiny_class.from_pretrained(tiny_folder.parent, subfolder="model")


def test_a_published_class_name_is_written_and_accepted(tmp_path, tiny_class) -> None:
    class RenamedModel(tiny_class):
        _published_class_name = "TinyModel"

    RenamedModel().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["_class_name"] == "TinyModel"
    assert RenamedModel.from_pretrained(tmp_path)
    assert tiny_class.from_pretrained(tmp_path)


@pytest.mark.parametrize("gain", [None, 2.0])
def test_extension_keys_are_written_only_where_they_say_something(
    tmp_path, tiny_class, gain
) -> None:
    tiny_class(extra_gain=gain).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.get("extra_gain") == gain
    assert ("extra_gain" in config) == (gain is not None)
    assert "_name_or_path" not in config
    assert tiny_class.from_pretrained(tmp_path).config.extra_gain == gain


def test_a_second_save_leaves_nothing_stale(tmp_path, tiny_class) -> None:
    tiny_class(num_layers=4).save_pretrained(tmp_path, max_shard_size=300)
    tiny_class(num_layers=2).save_pretrained(tmp_path, variant="fp16")
    model = tiny_class(num_layers=4)
    model.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.json", WEIGHTS, "diffusion_pytorch_model.fp16.safetensors"}
    assert equal(model, tiny_class.from_pretrained(tmp_path))


def test_a_failed_save_keeps_the_old_file(tmp_path, tiny_class, monkeypatch) -> None:
    model = tiny_class()
    model.save_pretrained(tmp_path)

    def full_disk(tensors: Any, path: Path, metadata: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        tiny_class().save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", WEIGHTS}
    assert equal(model, tiny_class.from_pretrained(tmp_path))


def test_int8_storage_is_close_small_and_marked(tmp_path, tiny_class) -> None:
    model = tiny_class(width=64)
    model.save_pretrained(tmp_path, int8=True)
    reader = WeightsReader.open(tmp_path / WEIGHTS)
    assert reader.files[0].tensors["expand.weight"].dtype == torch.int8
    assert reader.tensors.keys() == published_state_dict(model).keys()
    loaded = tiny_class.from_pretrained(tmp_path)
    step = model.expand.weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((loaded.expand.weight - model.expand.weight).abs() <= step / 2 + 1e-8).all()
    assert loaded.expand.weight.dtype == torch.float32


def test_load_published_state_dict_is_strict(tiny_class) -> None:
    source, target = tiny_class(), tiny_class()
    state = published_state_dict(source)
    target.load_published_state_dict(state)
    assert equal(source, target)
    assert target.expand.weight.data_ptr() != source.expand.weight.data_ptr()
    state.pop("depth.bias")
    with pytest.raises(WeightsError, match=r"missing: depth\.bias"):
        target.load_published_state_dict(state)


def test_a_table_built_without_its_device_is_reported(tmp_path, tiny_class) -> None:
    class CarelessModel(tiny_class):
        _published_class_name = "TinyModel"

        def __init__(self, width: int = 8, num_layers: int = 1, extra_gain: float | None = None):
            super().__init__(width, num_layers, extra_gain)
            self.register_buffer("careless", torch.arange(4.0), persistent=False)

    tiny_class().save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"CarelessModel\.careless.*device"):
        CarelessModel.from_pretrained(tmp_path)


def test_saving_onto_a_file_is_refused(tmp_path, tiny_class) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="found a file"):
        tiny_class().save_pretrained(tmp_path / "file")
