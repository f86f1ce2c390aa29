"""The prompts by which video models are scored: committed, balanced, and of visible motions."""

from collections import Counter

import pytest

from sana_like_train.data.motion import MOTIONS
from sana_like_train.data.records import load_records
from sana_like_train.data.split import load_split, make_split
from sana_like_train.data.video_prompts import load_video_prompts, make_video_prompts


def test_committed_list():
    lists = load_video_prompts()
    assert Counter(one.motion for one in lists.clips) == dict.fromkeys(MOTIONS, 10)
    assert len({one.key for one in (*lists.clips, *lists.long)}) == 110
    assert all(one.prompt.endswith(f", {one.motion}") for one in lists.clips)
    assert all(MOTIONS[one.motion].endless for one in lists.long)
    assert [one.seed for one in lists.clips] == list(range(100))
    split = load_split()
    for one in (*lists.clips, *lists.long):
        code, _, style = one.key.rpartition("_")
        assert code in split.selected and code not in split.held_out
        assert style in split.styles and split.composition.get(code) != style


def test_round_trip(tmp_path):
    lists = load_video_prompts()
    path = tmp_path / "a.json"
    path.write_text(lists.to_json(), encoding="utf-8")
    assert load_video_prompts(path) == lists
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="not a list of video prompts"):
        load_video_prompts(path)


def test_discs_are_never_asked_to_spin(emoji_pack):
    records = load_records(emoji_pack(count=60))
    split = make_split(records, seed=0, styles=("3d", "flat"))
    with pytest.raises(ValueError, match="none is left that spins clockwise"):
        make_video_prompts(records, split, steps=1, guidance=1.0)
