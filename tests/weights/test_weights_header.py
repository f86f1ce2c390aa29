"""Broken, hostile and foreign files are refused from their first bytes and headers."""

from __future__ import annotations

import json
import os
import pickle
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as safetensors_bytes

from sana_like.weights.errors import WeightsError
from sana_like.weights.files import JSON_LIMIT
from sana_like.weights.header import read_header
from sana_like.weights.strict import WeightsReader

GOOD = safetensors_bytes({"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(4).half()})
HEADER_END = 8 + int.from_bytes(GOOD[:8], "little")
PLAIN = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Marker:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def refused(path: Path, *parts: str) -> str:
    """The message of the refusal, which must come fast and name the path and `parts`."""
    start = time.process_time()
    with pytest.raises(WeightsError) as caught:
        WeightsReader.open(path)
    assert time.process_time() - start < 1
    message = str(caught.value)
    assert str(path) in message
    for part in parts:
        assert part in message
    return message


def test_a_good_file_reads_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(GOOD)
    reader = WeightsReader.open(path)
    assert dict(reader.items()).keys() == {"a.weight", "b"}
    assert torch.equal(reader.read("a.weight"), torch.arange(6.0).view(2, 3))
    assert reader.read("b").dtype == torch.float16


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["0 bytes", "empty"]),
        (b"\0" * 64, ["64 bytes", "header of 0 bytes"]),
        (GOOD[:5], ["5 bytes", "at least 8"]),
        (GOOD[:20], ["20 bytes", str(HEADER_END), "cut inside its header"]),
        (GOOD[: HEADER_END + 9], [str(len(GOOD)), str(HEADER_END + 9), "cut short"]),
        (GOOD[:-1], [str(len(GOOD)), str(len(GOOD) - 1), "cut short", "again"]),
        (GOOD + b"\0", [str(len(GOOD)), str(len(GOOD) + 1), "foreign bytes"]),
        (b"\n<!DOCTYPE html><html>404</html>", ["web page"]),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1183919744\n",
            ["Git LFS pointer", "1183919744 bytes", "git lfs pull"],
        ),
        (b"GGUF\x03\0\0\0" + b"\0" * 32, ["GGUF"]),
        (b"\xff" * 8 + b"{}", ["header of"]),
    ],
)
def test_broken_content_is_refused_with_sizes_and_remedy(
    tmp_path: Path, content: bytes, parts: list[str]
) -> None:
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    path.write_bytes(content)
    refused(path, *parts)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_booby_trapped_pickle_never_runs(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "marker"
    payload = pickle.dumps(Marker(marker), protocol=protocol)
    for name in ("x.safetensors", "x.pth", "x.bin", "x.ckpt", "x.pt"):
        path = tmp_path / name
        path.write_bytes(payload)
        refused(path, "sana-like convert")
    torch.save({"a": torch.ones(1)}, tmp_path / "zip.pth")
    (tmp_path / "zip.pth").rename(tmp_path / "zip.safetensors")
    refused(tmp_path / "zip.safetensors", "sana-like convert")
    assert not marker.exists()


def entry(shape: object, offsets: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ({"a": entry([2, 2], [0, 8])}, "needs 16 bytes, the header gives 8"),
        ({"a": entry([10**12], [0, 8])}, "impossible shape"),
        ({"a": entry([-1], [0, 8])}, "impossible shape"),
        ({"a": entry([True], [0, 4])}, "impossible shape"),
        ({"a": entry([1] * 40, [0, 4])}, "impossible shape"),
        ({"a": entry([2], [8, 0])}, "impossible data_offsets"),
        ({"a": entry([2], [0, 8], "F99")}, "unknown dtype 'F99'"),
        ({"a": entry([2], [0, 8], ["F32"])}, "unknown dtype"),
        ({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, "overlap"),
        ({"a": entry([1], [4, 8])}, "gap"),
        ({"a": entry([2], [0, 8]), "b": entry([2], [0, 8])}, "overlap"),
        ({"a": [1, 2]}, "needs dtype, shape and data_offsets"),
        ({"a": {**entry([2], [0, 8]), "x": 1}}, "needs dtype, shape and data_offsets"),
        ({"__metadata__": {"a": 1}}, "strings to strings"),
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b'{"a": NaN}', "NaN"),
        (b"[1, 2]", "expected a JSON object"),
        (b"{" * 5000, "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
        (b'{"a": ' + b"1" * 6000 + b"}", "not valid JSON"),
        (b'{"\xff": 1}', "not valid JSON"),
    ],
)
def test_lying_headers_are_refused(tmp_path: Path, raw_safetensors, header, part: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors(header, b"\0" * 8))
    refused(path, part)


def test_a_promise_of_terabytes_costs_no_memory(tmp_path: Path, raw_safetensors) -> None:
    path = tmp_path / "x.safetensors"
    shape = [2**20, 2**20]
    path.write_bytes(raw_safetensors({"a": entry(shape, [0, 2**42])}, b"\0" * 8))
    tracemalloc.start()
    refused(path, str(path.stat().st_size - 8 + 2**42), "cut short")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_a_huge_header_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as handle:
        handle.write((JSON_LIMIT + 1).to_bytes(8, "little"))
        handle.truncate(JSON_LIMIT + 100)  # sparse
    refused(path, "which no file has")


def test_what_is_no_file_is_refused_without_blocking(tmp_path: Path) -> None:
    folder = tmp_path / "x.safetensors"
    folder.mkdir()
    refused(folder, "found a folder")
    refused(tmp_path / "absent.safetensors", "cannot be read")
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    refused(pipe, "no regular file")


def test_a_header_of_pickle_like_length_is_still_safetensors(
    tmp_path: Path, raw_safetensors
) -> None:
    # The length 0x0280 gives the first bytes 80 02, which also begin a pickle.
    text = json.dumps({"a": entry([1], [0, 4])}).encode().ljust(0x0280)
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors(text, b"\0" * 4))
    assert read_header(path).tensors.keys() == {"a"}


@PLAIN
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_leaves_a_readable_file(
    tmp_path: Path, position: int, change: int
) -> None:
    broken = bytearray(GOOD)
    broken[position] ^= change
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes(broken))
    try:
        reader = WeightsReader.open(path)
    except WeightsError:
        return
    total = sum(tensor.nbytes for _, tensor in reader.items())
    assert total == len(GOOD) - HEADER_END


@PLAIN
@given(st.integers(0, len(GOOD) - 1), st.binary(max_size=24))
def test_cuts_and_foreign_tails_are_always_refused(
    tmp_path: Path, length: int, tail: bytes
) -> None:
    path = tmp_path / "x.safetensors"
    content = GOOD[:length] + tail
    path.write_bytes(content)
    if content == GOOD:
        return
    try:
        reader = WeightsReader.open(path)
    except WeightsError:
        return
    # Only a change inside the tensors' bytes, of equal length, can pass.
    assert len(content) == len(GOOD) and reader.tensors.keys() == {"a.weight", "b"}


@PLAIN
@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError):
        WeightsReader.open(path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I8", "F8_E4M3"]) | JSON_VALUES,
        "shape": st.lists(st.integers(-1, 9), max_size=4) | JSON_VALUES,
        "data_offsets": st.lists(st.integers(-1, 64), min_size=2, max_size=2) | JSON_VALUES,
    }
)


@PLAIN
@given(st.dictionaries(st.text(max_size=8), ENTRIES | JSON_VALUES, max_size=4))
def test_arbitrary_headers_are_refused_or_describe_the_file_exactly(
    tmp_path: Path, raw_safetensors, header: dict[str, object]
) -> None:
    path = tmp_path / "x.safetensors"
    data = b"\1" * 16
    path.write_bytes(raw_safetensors(header, data))
    try:
        reader = WeightsReader.open(path)
    except WeightsError:
        return
    assert sum(tensor.nbytes for _, tensor in reader.items()) == len(data)


@PLAIN
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
            lambda key: key != "__metadata__"
        ),
        st.tuples(
            st.lists(st.integers(0, 5), max_size=4),
            st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.int8]),
        ),
        max_size=5,
    )
)
def test_what_the_library_writes_is_read_back(tmp_path: Path, spec) -> None:
    tensors = {key: torch.randint(0, 2, shape).to(dtype) for key, (shape, dtype) in spec.items()}
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes(tensors))
    read = dict(WeightsReader.open(path).items())
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[key], tensors[key]) for key in tensors)
