"""The state of a stream as a value and as a file."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from sana_like.autoencoders.causal import CausalCache
from sana_like.state import BlockState, State, chunk_spans, load_parts, save_parts
from sana_like.weights.errors import WeightsError


def make(batch=2, frames=7, grid=(2, 3)):
    blocks = tuple(
        BlockState(
            {"key_value": torch.randn(batch, 2, 4, 4), "key_sum": torch.randn(batch, 2, 4)},
            {"tail": torch.randn(batch, 1, 6, 8).bfloat16()},
        )
        for _ in range(3)
    )
    return State(blocks, frames, grid)


def same(one, other):
    mine, theirs = one.tensors(), other.tensors()
    assert mine.keys() == theirs.keys() and one.settings() == other.settings()
    return all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.fixture
def state():
    return make()


def test_size_and_names(state):
    assert len(state) == 2
    assert state.nbytes == 3 * 2 * ((2 * 16 + 2 * 4) * 4 + 48 * 2)
    assert set(state.tensors()) >= {"blocks.2.mixer.key_sum", "blocks.0.feed_forward.tail"}


def test_rows_are_a_batch(state):
    one, two = state.rows([0]), state.rows([1])
    assert len(one) == 1 and same(State.cat([one, two]), state)
    assert len(state.repeat(3)) == 6 and same(state.repeat(3).rows([0, 3]), state)
    with pytest.raises(ValueError, match="2 kinds"):
        State.cat([one, make(frames=8)])
    with pytest.raises(ValueError, match="0 states"):
        State.cat([])


def test_clones_share_nothing(state):
    copy = state.clone()
    assert same(copy, state)
    copy.blocks[0].mixer["key_sum"].zero_()
    assert state.blocks[0].mixer["key_sum"].any()


def test_a_file_gives_it_back_bit_for_bit(state, tmp_path):
    path = tmp_path / "new folder" / "state.safetensors"
    state.rows(slice(0, 1)).save(path)
    state.save(path)
    assert same(State.load(path), state)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_parts_go_together(state, tmp_path):
    cache = CausalCache((torch.randn(1, 2, 3), torch.randn(1, 1, 3)))
    path = tmp_path / "stream.safetensors"
    kinds = {"transformer": State, "decoder": CausalCache}
    save_parts(path, {"transformer": state, "decoder": cache}, {"prompt": "a fox", "seed": 3})
    parts, extra = load_parts(path, kinds)
    assert same(parts["transformer"], state) and extra == {"prompt": "a fox", "seed": 3}
    assert all(map(torch.equal, parts["decoder"].frames, cache.frames))
    with pytest.raises(WeightsError, match="another kind of stream"):
        State.load(path)


def test_broken_and_foreign_files_are_refused(state, tmp_path):
    path = tmp_path / "state.safetensors"
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(WeightsError, match="no state of a stream"):
        State.load(path)
    state.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(WeightsError):
        State.load(path)
    path.write_bytes(whole.replace(b'\\"version\\": 1', b'\\"version\\": 9'))
    with pytest.raises(WeightsError, match="format 9"):
        State.load(path)
    path.write_bytes(whole.replace(b'\\"frames\\": 7', b'\\"frames\\": -'))
    with pytest.raises(WeightsError):
        State.load(path)
    path.write_bytes(whole)
    tensors = load_file(path)
    assert len(tensors) == 9
    for settings in ({}, {"blocks": 2, "frames": 0, "grid": [1, 1]}, {"blocks": 3, "grid": [1]}):
        with pytest.raises(ValueError, match="not the tensors of a state"):
            State.from_tensors(state.tensors(), settings)
    with pytest.raises(ValueError, match="not the settings"):
        State.from_tensors(state.tensors(), state.settings() | {"frames": -1})


def test_spans_of_chunks():
    assert list(chunk_spans((2, 1, 3), 4)) == [slice(0, 8), slice(8, 12), slice(12, 24)]
