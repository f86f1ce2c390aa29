"""Shards, their index, and the choice of files in a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sana_like.weights.errors import WeightsError
from sana_like.weights.strict import WeightsReader, find_weights

INDEX = "diffusion_pytorch_model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """An index of two shards."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": torch.ones(2)}, folder / "one.safetensors")
    save_file({"b": torch.zeros(3), "c": torch.ones(1)}, folder / "two.safetensors")
    return write_index(folder, {"a": "one", "b": "two", "c": "two"})


def write_index(folder: Path, weight_map: dict[str, object]) -> Path:
    names = {
        key: f"{name}.safetensors" if isinstance(name, str) and "." not in name else name
        for key, name in weight_map.items()
    }
    index = folder / INDEX
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return index


def test_shards_read_as_one(sharded: Path) -> None:
    reader = WeightsReader.open(sharded)
    assert reader.tensors.keys() == {"a", "b", "c"}
    assert torch.equal(reader.read("a"), torch.ones(2))


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "sub/../../outside.safetensors",
        "ABSOLUTE",
        "sub/inner.safetensors",
        "..\\outside.safetensors",
        "C:outside.safetensors",
        "link.safetensors",
        "out\0side.safetensors",
        "one.pth",
        "",
        ".",
        7,
        None,
    ],
)
def test_an_index_may_not_point_outside_its_folder(sharded: Path, name: object) -> None:
    folder = sharded.parent
    outside = folder.parent / "outside.safetensors"
    save_file({"b": torch.zeros(3), "c": torch.ones(1)}, outside)
    (folder / "sub").mkdir()
    shutil.copy(outside, folder / "sub" / "inner.safetensors")
    (folder / "link.safetensors").symlink_to(outside)
    target = str(outside) if name == "ABSOLUTE" else name
    weight_map = {"a": "one.safetensors", "b": target, "c": target}
    sharded.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError, match=r"outside its folder|no file name") as caught:
        WeightsReader.open(sharded)
    assert str(sharded) in str(caught.value)


def test_a_hub_cache_snapshot_may_link_to_its_blobs(sharded: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--owner--name"
    snapshot = repository / "snapshots" / "abc" / "transformer"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for path in sharded.parent.iterdir():
        shutil.copy(path, repository / "blobs" / path.name)
        (snapshot / path.name).symlink_to(Path("../../../blobs") / path.name)
    assert WeightsReader.open(snapshot / INDEX).tensors.keys() == {"a", "b", "c"}


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.zeros(3)}, sharded.parent / "one.safetensors")
    with pytest.raises(WeightsError, match=r"disagrees with one\.safetensors.*\(b\)"):
        WeightsReader.open(sharded)


@pytest.mark.parametrize(
    ("weight_map", "part"),
    [
        ({"a": "one", "b": "two"}, r"present but not promised \(c\)"),
        ({"a": "one", "b": "two", "c": "two", "d": "two"}, r"promised but absent \(d\)"),
        ({"a": "one", "b": "three", "c": "three"}, r"1 of 2 shards are missing: three"),
        ({}, "non-empty weight_map"),
    ],
)
def test_index_and_shards_must_agree(sharded: Path, weight_map: dict[str, object], part) -> None:
    write_index(sharded.parent, weight_map)
    with pytest.raises(WeightsError, match=part):
        WeightsReader.open(sharded)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"weight_map": 3}', b"\xff\xfe", b"{" * 9999]
)
def test_a_broken_index_is_refused(sharded: Path, text: bytes) -> None:
    sharded.write_bytes(text)
    with pytest.raises(WeightsError, match=INDEX.replace(".", r"\.")):
        WeightsReader.open(sharded)


def test_a_file_cut_after_opening_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(100)}, path)
    reader = WeightsReader.open(path)
    with path.open("rb+") as handle:
        handle.truncate(100)
    with pytest.raises(WeightsError, match="changed while it was read"):
        reader.read("a")


def test_find_weights_lists_what_there_is_instead(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="found neither"):
        find_weights(tmp_path)
    (tmp_path / "diffusion_pytorch_model.fp16.safetensors").touch()
    with pytest.raises(WeightsError, match=r"fp16\.safetensors; choose one with variant"):
        find_weights(tmp_path)
    assert find_weights(tmp_path, "fp16").name == "diffusion_pytorch_model.fp16.safetensors"


def test_find_weights_refuses_pickles_by_name(tmp_path: Path) -> None:
    (tmp_path / "diffusion_pytorch_model.bin").touch()
    with pytest.raises(WeightsError, match="sana-like convert"):
        find_weights(tmp_path)
