from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sana_like_train.data.captions import emoji_prompt
from sana_like_train.data.committed import write_committed_files
from sana_like_train.data.packs import find_pack
from sana_like_train.data.prompts import load_prompt_list, make_prompt_list
from sana_like_train.data.records import load_records
from sana_like_train.data.split import Concept, is_nameable, load_split, make_split, read_split_file


def test_every_twentieth_concept_is_held_out_in_all_styles(emoji_pack: Callable[..., Path]) -> None:
    records = load_records(emoji_pack(50, side=4))
    split = make_split(records, seed=3)
    assert split.held_out == {"1f000", "1f014", "1f028"}
    held_out = split.records(records, "held_out")
    assert Counter(record.concept for record in held_out) == dict.fromkeys(split.held_out, 2)
    # A tenth of all concepts loses one style, none of them a held-out one.
    assert len(split.composition) == 5
    assert not split.held_out & set(split.composition)
    assert len(split.records(records, "composition")) == 5
    parts = [split.records(records, part) for part in ("train", "composition", "held_out")]
    assert sum(map(len, parts)) == sum(map(split.is_selected, records))


def test_split_does_not_depend_on_the_order_of_records(emoji_pack: Callable[..., Path]) -> None:
    records = load_records(emoji_pack(50, side=4))
    assert make_split(records[::-1], seed=3) == make_split(records, seed=3)
    assert make_split(records, seed=4).composition != make_split(records, seed=3).composition


def test_split_file_round_trip(emoji_pack: Callable[..., Path], tmp_path: Path) -> None:
    records = load_records(emoji_pack(50, side=4))
    split = make_split(records, seed=3)
    (tmp_path / "mine.json").write_text(split.to_json())
    assert load_split(tmp_path / "mine.json") == split


@pytest.mark.parametrize(
    ("code", "label", "group", "subgroup", "expected"),
    [
        ("1f34e", "red apple", "food-drink", "food-fruit", True),
        ("1f51f", "keycap: 10", "symbols", "keycap", False),
        ("1f550", "one o’clock", "travel-places", "time", False),  # noqa: RUF001
        ("23f0", "alarm clock", "travel-places", "time", True),
        ("1f3c3", "person running", "people-body", "person-activity", True),
        ("1f3c3-200d-2640", "woman running", "people-body", "person-activity", False),
        ("1f3c3-200d-27a1", "person running: facing right", "people-body", "x", False),
        ("1f468-200d-1f692", "man firefighter", "people-body", "person-role", False),
        ("1f9d1-200d-1f692", "firefighter", "people-body", "person-role", True),
        ("1f469-200d-1f52c", "woman scientist", "people-body", "person-role", True),
        ("1f468-200d-1f466", "family: man, boy", "people-body", "family", False),
        ("1f9d1-200d-1f9b0", "person: red hair", "people-body", "person", False),
    ],
)
def test_concepts_of_the_product(
    code: str, label: str, group: str, subgroup: str, expected: bool
) -> None:
    # The pack holds a neutral firefighter, but no neutral scientist.
    codes = {code, "1f9d1-200d-1f692"}
    assert is_nameable(Concept(code, label, group, subgroup, ("3d",)), codes) is expected


def test_committed_split_follows_its_rules() -> None:
    split = load_split("emoji")
    assert split.held_out == set(sorted(split.concepts)[::20])
    assert len(split.selected) >= 900
    assert split.selected <= split.concepts
    assert 2 <= len(split.styles) <= 4
    assert set(split.composition) <= split.concepts - split.held_out
    assert len(split.composition) == round(0.1 * len(split.concepts))
    assert set(split.composition.values()) <= set(split.styles)


def test_committed_prompts_fit_the_split() -> None:
    split, prompts = load_split("emoji"), load_prompt_list()
    assert len(prompts.seen) == 200
    for part in ("seen", "composition", "unseen"):
        listed = getattr(prompts, part)
        assert len({entry.key for entry in listed}) == len(listed) > 0
        for entry in listed:
            code, _, style = entry.key.rpartition("_")
            assert code in split.selected
            assert style in split.styles
            assert entry.prompt.endswith(f", {style}")
            assert (code in split.held_out) == (part == "unseen")
            assert (split.composition.get(code) == style and code not in split.held_out) == (
                part == "composition"
            )


def test_files_are_written_for_any_styles(emoji_pack: Callable[..., Path], tmp_path: Path) -> None:
    split, prompts = write_committed_files(emoji_pack(30, side=4), tmp_path, styles=("3d", "noto"))
    assert load_split(tmp_path / "emoji.json") == split
    assert load_prompt_list(tmp_path / "emoji_prompts.json") == prompts
    assert {entry.key.rpartition("_")[2] for entry in prompts.unseen} == {"3d", "noto"}


def test_prompt_list_round_trip(emoji_pack: Callable[..., Path], tmp_path: Path) -> None:
    records = load_records(emoji_pack(50, side=4))
    prompts = make_prompt_list(records, make_split(records, seed=3), steps=7, guidance=2.5, count=9)
    assert (len(prompts.seen), len(prompts.composition), len(prompts.unseen)) == (9, 5, 6)
    by_key = {record.key: record for record in records}
    for entry in prompts.seen + prompts.composition + prompts.unseen:
        record = by_key[entry.key]
        assert entry.prompt == emoji_prompt(record.label, record.style)
    (tmp_path / "list.json").write_text(prompts.to_json(), "utf-8")
    assert load_prompt_list(tmp_path / "list.json") == prompts


def test_committed_files_are_those_of_the_pack(tmp_path: Path) -> None:
    try:
        pack = find_pack("emoji")
    except ValueError:
        pytest.skip("the emoji pack is not built")
    split, prompts = load_split("emoji"), load_prompt_list()
    made = write_committed_files(
        pack, tmp_path, styles=split.styles, steps=prompts.steps, guidance=prompts.guidance
    )
    assert made == (split, prompts)
    for name in ("emoji", "emoji_prompts"):
        assert (tmp_path / f"{name}.json").read_text("utf-8") == read_split_file(name)


@pytest.mark.parametrize("load", [load_split, load_prompt_list])
def test_unusable_files_are_refused(load: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no split 'other'"):
        load("other")
    with pytest.raises(ValueError, match="does not exist"):
        load(tmp_path / "none.json")
    for content in ("{", "[]", "{}", '{"steps": 1}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(ValueError, match=r"bad\.json"):
            load(tmp_path / "bad.json")
