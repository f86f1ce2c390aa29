from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sana_like_train.data.buckets import (
    BucketBatchSampler,
    fit_to_bucket,
    make_buckets,
    nearest_bucket,
)

SIZES = [(100 + 13 * i % 90, 100 + 7 * i % 120) for i in range(53)]
BUCKETS = make_buckets(128 * 128, 32)


@given(side=st.integers(64, 1024), multiple=st.sampled_from([8, 32, 64]), ratio=st.floats(1.0, 4.0))
@settings(max_examples=50, deadline=None)
def test_buckets(side: int, multiple: int, ratio: float) -> None:
    buckets = make_buckets(side * side, multiple, ratio)
    assert len(set(buckets)) == len(buckets) > 0
    assert {(width, height) for height, width in buckets} == set(buckets)
    for height, width in buckets:
        assert height % multiple == width % multiple == 0
        assert max(height, width) <= max(ratio, 1.0) * min(height, width)
        nearest_width = abs(width - side * side / height) <= multiple / 2
        nearest_height = abs(height - side * side / width) <= multiple / 2
        nearest_square = height == width and abs(height - side) <= multiple / 2
        assert nearest_width or nearest_height or nearest_square
    assert [width / height for height, width in buckets] == sorted(w / h for h, w in buckets)


def test_nearest_bucket_is_symmetric() -> None:
    for bucket in BUCKETS:
        assert BUCKETS[nearest_bucket((3 * bucket[0], 3 * bucket[1]), BUCKETS)] == bucket
    tall, wide = BUCKETS[nearest_bucket((300, 200), BUCKETS)], nearest_bucket((200, 300), BUCKETS)
    assert tall == BUCKETS[wide][::-1]


@pytest.mark.parametrize("size", [(31, 77), (77, 31), (64, 96), (1, 500), (200, 200)])
def test_pictures_cover_their_bucket(size: tuple[int, int]) -> None:
    fitted = fit_to_bucket(torch.rand(3, *size) * 2 - 1, (64, 96))
    assert fitted.shape == (3, 64, 96)
    assert fitted.abs().max() <= 1.0


def test_fitting_keeps_the_middle_and_the_right_size() -> None:
    picture = torch.arange(8.0).repeat(3, 4, 1) / 8
    assert torch.equal(fit_to_bucket(picture, (4, 4)), picture[:, :, 2:6])
    assert torch.equal(fit_to_bucket(picture, (4, 8)), picture)


def test_every_picture_once_an_epoch_in_batches_of_one_shape() -> None:
    sampler = BucketBatchSampler(SIZES, BUCKETS, 4, seed=1)
    batches = sampler.epoch_batches(0)
    indices = [index for batch in batches for index in batch.indices]
    assert sorted(indices) == list(range(len(SIZES)))
    for batch in batches:
        assert {BUCKETS[nearest_bucket(SIZES[i], BUCKETS)] for i in batch.indices} == {batch.size}
    assert batches != sampler.epoch_batches(1)
    full = BucketBatchSampler(SIZES, BUCKETS, 4, seed=1, drop_last=True).epoch_batches(0)
    assert full
    assert all(len(batch.indices) == 4 for batch in full)


@pytest.mark.parametrize("stop", [0, 1, 5, 30])
def test_resume_goes_on_exactly(stop: int) -> None:
    whole = list(itertools.islice(BucketBatchSampler(SIZES, BUCKETS, 4, seed=1), 60))
    first = BucketBatchSampler(SIZES, BUCKETS, 4, seed=1)
    begun = list(itertools.islice(first, stop))
    second = BucketBatchSampler(SIZES, BUCKETS, 4, seed=1)
    second.load_state_dict(first.state_dict())
    assert begun + list(itertools.islice(second, 60 - stop)) == whole


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_an_epoch(world_size: int) -> None:
    alone = BucketBatchSampler(SIZES, BUCKETS, 4, seed=1).epoch_batches(2)
    shares = [
        BucketBatchSampler(SIZES, BUCKETS, 4, seed=1, rank=r, world_size=world_size).epoch_batches(
            2
        )
        for r in range(world_size)
    ]
    assert {len(share) for share in shares} == {math.ceil(len(alone) / world_size)}
    dealt = [batch for step in zip(*shares, strict=True) for batch in step]
    assert dealt[: len(alone)] == alone
    assert set(dealt) == set(alone)


def test_unusable_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples"):
        make_buckets(100, 32)
    with pytest.raises(ValueError, match="aspect"):
        nearest_bucket((0, 5), BUCKETS)
    with pytest.raises(ValueError, match="0 pictures"):
        BucketBatchSampler([], BUCKETS, 4)
    with pytest.raises(ValueError, match="rank 2"):
        BucketBatchSampler(SIZES, BUCKETS, 4, rank=2, world_size=2)
    with pytest.raises(ValueError, match="drop_last"):
        BucketBatchSampler(SIZES, BUCKETS, 1000, drop_last=True)
    for state in ({}, {"epoch": -1, "position": 0}, {"epoch": 0, "position": "1"}):
        with pytest.raises(ValueError, match="sampler state"):
            BucketBatchSampler(SIZES, BUCKETS, 4).load_state_dict(state)
