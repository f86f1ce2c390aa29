from __future__ import annotations

from collections import Counter

import pytest

from sana_like_train.data.captions import (
    OTHER_LANGUAGES,
    Caption,
    choose_caption,
    emoji_captions,
    emoji_prompt,
    with_article,
)

APPLE = {
    "style": "3d",
    "en": {"label": "red apple", "tags": ["Apple", "diet", "food", "fruit"]},
    "es": {"label": "manzana roja", "tags": ["fruta"]},
    "ja": {"label": "赤リンゴ", "tags": []},
}


def test_first_caption_is_label_and_style_and_has_most_weight() -> None:
    captions = emoji_captions(APPLE)
    assert captions[0].text == "red apple, 3d" == emoji_prompt("red apple", "3d")
    assert captions[0].weight > sum(caption.weight for caption in captions) * 0.45
    assert captions[0].weight == max(caption.weight for caption in captions)


def test_forms_of_an_emoji() -> None:
    texts = [c.text for c in emoji_captions(APPLE, languages=OTHER_LANGUAGES)]
    assert len(set(texts)) == len(texts)
    assert {"a red apple, 3d", "red apple, diet, 3d", "manzana roja, 3d", "赤リンゴ, 3d"} <= set(
        texts
    )
    assert "red apple, Apple, 3d" not in texts  # says nothing that the label does not
    assert not any("manzana" in c.text for c in emoji_captions(APPLE))


def test_typographic_quotes_become_typed_ones() -> None:
    metadata = {"style": "flat", "en": {"label": "woman’s hat", "tags": []}}  # noqa: RUF001
    assert emoji_captions(metadata)[0].text == "woman's hat, flat"


def test_equal_texts_are_merged() -> None:
    metadata = {"style": "flat", "en": {"label": "grapes", "tags": []}}
    captions = emoji_captions(metadata)
    assert captions[0].text == "grapes, flat"
    assert captions[0].weight == pytest.approx(0.65)  # the form with an article is the same


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("red apple", "a red apple"),
        ("eggplant", "an eggplant"),
        ("unicorn", "a unicorn"),
        ("euro banknote", "a euro banknote"),
        ("umbrella", "an umbrella"),
        ("hourglass done", "an hourglass done"),
        ("grapes", "grapes"),
        ("octopus", "an octopus"),
        ("angry face with horns", "an angry face with horns"),
        ("money with wings", "a money with wings"),
        ("bread", "bread"),
        ("pot of food", "a pot of food"),
        ("Statue of Liberty", "Statue of Liberty"),
        ("person: beard", "person: beard"),
        ("1st place medal", "1st place medal"),
    ],
)
def test_article(label: str, expected: str) -> None:
    assert with_article(label) == expected


def test_choice_depends_on_seed_epoch_and_key_alone() -> None:
    captions = emoji_captions(APPLE)
    chosen = [choose_caption(captions, seed=1, epoch=e, key="k") for e in range(50)]
    backwards = [choose_caption(captions, seed=1, epoch=e, key="k") for e in reversed(range(50))]
    assert chosen == backwards[::-1]
    assert chosen != [choose_caption(captions, seed=2, epoch=e, key="k") for e in range(50)]
    assert chosen != [choose_caption(captions, seed=1, epoch=e, key="l") for e in range(50)]


def test_choice_follows_the_weights() -> None:
    captions = (Caption("a", 6.0), Caption("b", 3.0), Caption("c", 1.0))
    draws = Counter(choose_caption(captions, seed=0, epoch=e, key="k").text for e in range(5000))
    for caption in captions:
        assert draws[caption.text] / 5000 == pytest.approx(caption.weight / 10, abs=0.02)


@pytest.mark.parametrize("captions", [(), (Caption("a", 0.0),), (Caption("a"), Caption("b", -1.0))])
def test_no_caption_or_no_weight_is_refused(captions: tuple[Caption, ...]) -> None:
    with pytest.raises(ValueError, match="'some key'"):
        choose_caption(captions, seed=0, epoch=0, key="some key")
