"""Videos of any length: the same however they are cut, saved or continued, in constant memory."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import torch
from PIL import Image

from sana_like.schedulers.chunked import few_step_levels
from sana_like.weights.errors import WeightsError
from sana_like_pipelines import Cancelled, SanaVideoPipeline, StreamState

FIRST, LATER = 5, 8  # frames of the first chunk of two latent frames, and of every later one


@pytest.fixture
def few(brief):
    """Arguments of a stream of few-step chunks."""
    return {k: v for k, v in brief.items() if k != "num_inference_steps"} | {"guidance_scale": 1.0}


def taken(stream, count):
    return torch.stack([next(stream) for _ in range(count)])


def whole(pipe, count, few, **changes):
    return torch.stack(list(pipe.stream("a", frames=count, **{**few, **changes})))


@pytest.mark.parametrize("count", [1, 4, 5, 6, 13, 30])
def test_any_count_is_the_start_of_the_endless_video(long_video, few, count):
    made = whole(long_video, count, few)
    assert made.shape == (count, 3, 64, 64)
    assert torch.equal(made, taken(long_video.stream("a", **few), count))


def test_call_gives_the_same_as_the_stream(long_video, few):
    out = long_video("a", frames=13, **few)
    assert out.frames.shape == (1, 13, 3, 64, 64)
    assert torch.equal(out.frames[0], whole(long_video, 13, few))
    assert out.rate == 8.0
    assert long_video("a", **few).frames.shape[1] == 9


@pytest.mark.parametrize(
    ("stop", "changes"),
    [
        *((stop, {}) for stop in (0, 3, FIRST, FIRST + 1, FIRST + LATER, 20)),
        (3, {"guidance_scale": 3.0, "negative_prompt": "dull"}),
        (FIRST + 1, {"num_inference_steps": 2}),
        (FIRST + 1, {"chunk": 1, "levels": (1.0, 0.5)}),
    ],
)
def test_saved_and_continued_is_bit_equal(long_video, few, tmp_path, stop, changes):
    expected = whole(long_video, 30, few, **changes)
    stream = long_video.stream("a", **{**few, **changes})
    begin = taken(stream, stop) if stop else expected[:0]
    path = stream.state.save(tmp_path / "state.safetensors")
    resumed = long_video.stream(state=path, output_type="pt", frames=30 - stop)
    rest = torch.stack(list(resumed))
    assert torch.equal(torch.cat([begin, rest]), expected)
    assert resumed.recipe[0].get("resumed_after", 0) == stop
    assert resumed.recipe[0]["prompt"] == "a"


def test_a_stopped_stream_goes_on_after_its_last_frame(long_video, few):
    expected = whole(long_video, 21, few)
    for stop in (1, 4, 8):  # evaluations, three for each chunk
        asked: list[bool] = []

        def cancel(asked=asked, stop=stop):
            asked.append(True)
            return len(asked) > stop

        stream = long_video.stream("a", cancel=cancel, **few)
        got = []
        with pytest.raises(Cancelled):
            for frame in stream:
                got.append(frame)
        assert len(got) == stream.state.frames == {1: 0, 4: FIRST, 8: FIRST + LATER}[stop]
        rest = long_video.stream(state=stream.state, output_type="pt", frames=21 - len(got))
        assert torch.equal(torch.stack([*got, *rest]), expected)


def test_new_prompt_at_a_chunk(long_video, few):
    expected = whole(long_video, 30, few)
    stream = long_video.stream("a", **few)
    begin = taken(stream, FIRST + 2)
    stream.prompt = "something else entirely"
    rest = taken(stream, 30 - FIRST - 2)
    made = torch.cat([begin, rest])
    change = FIRST + LATER  # the second chunk was being given when the prompt came
    assert torch.equal(made[:change], expected[:change])
    assert not torch.equal(made[change:], expected[change:])
    recipe = json.loads(json.dumps(stream.recipe[0]))
    assert recipe["prompt"] == "a"
    assert recipe["prompts"] == {str(change): "something else entirely"}
    resumed = long_video.stream(state=stream.state, output_type="pt", frames=1)
    assert resumed.prompt == ["something else entirely"]
    with pytest.raises(ValueError, match="one for each of the 1"):
        stream.prompt = ["a", "b"]


def test_new_prompt_for_a_continued_video(long_video, few):
    stream = long_video.stream("a", **few)
    taken(stream, FIRST)
    same = long_video.stream(state=stream.state, output_type="pt", frames=LATER)
    other = long_video.stream("other", state=stream.state, output_type="pt", frames=LATER)
    assert not torch.equal(torch.stack(list(same)), torch.stack(list(other)))
    assert other.recipe[0]["prompts"] == {str(FIRST): "other"}


def test_a_fork_leaves_the_other_as_it_was(long_video, few):
    expected = whole(long_video, 21, few)
    stream = long_video.stream("a", **few)
    begin = taken(stream, FIRST)
    taken(long_video.stream("b", state=stream.state, output_type="pt"), 9)
    assert torch.equal(torch.cat([begin, taken(stream, 21 - FIRST)]), expected)


def test_several_videos_are_each_what_they_are_alone(long_video, few):
    stream = long_video.stream(["a", "bb"], **{**few, "generator": [1, 2]}, frames=13)
    rows = torch.stack(list(stream))  # [T, 2, 3, Y, X]
    for place, (prompt, seed) in enumerate((("a", 1), ("bb", 2))):
        alone = long_video.stream(prompt, **{**few, "generator": seed}, frames=13)
        assert (rows[:, place] - torch.stack(list(alone))).abs().max() < 2e-4


def test_state_never_grows(long_video, few):
    stream = long_video.stream("a", **few)
    taken(stream, FIRST)
    early = stream.state.nbytes
    taken(stream, 20 * LATER)
    assert stream.state.nbytes == early
    assert stream.state.frames == FIRST + 20 * LATER


def test_one_long_chunk_is_a_clip(long_video, make_video, brief):
    clip = make_video(SanaVideoPipeline)("a", frames=9, **brief).frames[0]
    stream = long_video.stream("a", chunk=3, frames=9, **brief)
    assert (torch.stack(list(stream)) - clip).abs().max() < 2e-4


def test_video_that_begins_with_a_picture(long_video, few):
    picture = Image.new("RGB", (64, 64), (30, 160, 60))
    made = whole(long_video, 13, few, image=picture)
    encoded = long_video.codec.encode_video(
        torch.tensor([30, 160, 60]).view(1, 3, 1, 1, 1).expand(1, 3, 1, 64, 64) / 127.5 - 1
    )
    first = long_video.codec.decode_video(encoded)[0, :, 0] / 2 + 0.5
    assert (made[0] - first.clamp(0, 1)).abs().max() < 1e-4
    stream = long_video.stream("a", **few)
    taken(stream, 1)
    with pytest.raises(ValueError, match="give one of them"):
        long_video.stream("a", state=stream.state, image=picture)


def test_levels_steps_and_chunks_can_be_chosen(long_video, few):
    plain = whole(long_video, 9, few)
    assert not torch.equal(plain, whole(long_video, 9, few, levels=few_step_levels(2)))
    assert not torch.equal(plain, whole(long_video, 9, few, num_inference_steps=2))
    assert not torch.equal(plain, whole(long_video, 9, few, chunk=1))
    for changes in ({"levels": (0.5, 0.9)}, {"levels": ()}, {"chunk": 0}, {"frames": 0}):
        with pytest.raises(ValueError, match="must"):
            long_video.stream("a", **{**few, **changes})


def test_states_that_do_not_fit_are_refused(long_video, few, tmp_path):
    stream = long_video.stream("a", **few)
    taken(stream, 1)
    for changes, message in (
        ({"height": 96}, "height=96"),
        ({"guidance_scale": 2.0}, "size or guidance"),
        ({"generator": 3}, "generator begins a video"),
        ({"prompt": ["a", "b"]}, "1 videos, this call asks for 2"),
    ):
        with pytest.raises(ValueError, match=message):
            long_video.stream(state=stream.state, **changes)
    (tmp_path / "no.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(WeightsError):
        long_video.stream(state=tmp_path / "no.safetensors")


def test_guidance_in_a_stream(long_video, few):
    guided = {**few, "guidance_scale": 3.0}
    made = whole(long_video, 21, guided)
    one_by_one = whole(long_video, 21, guided, guidance_passes="sequential")
    assert (made - one_by_one).abs().max() < 2e-4
    assert not torch.equal(made, whole(long_video, 21, few))
    skipped = whole(long_video, 21, guided, stg_scale=2.0)
    assert not torch.equal(made, skipped)


def test_progress_of_every_chunk(long_video, few):
    from sana_like_pipelines.preview import LatentRGB

    long_video.latent_rgb = LatentRGB(1, torch.zeros(3, 8), torch.zeros(3))
    told = []
    stream = long_video.stream(
        "a", **few, preview=lambda done, total, pictures: told.append((done, total))
    )
    taken(stream, FIRST + 1)
    assert told == [(1, 3), (2, 3), (3, 3)] * 2
    stream.close()
    assert list(stream) == []


@pytest.mark.slow
def test_continued_in_a_new_process(long_video, few, tmp_path):
    long_video.save_pretrained(tmp_path / "model")
    expected = whole(long_video, 24, few)
    stream = long_video.stream("a", **few)
    taken(stream, FIRST + 3)
    stream.state.save(tmp_path / "state.safetensors")
    program = f"""
        import torch
        from safetensors.torch import save_file
        from sana_like_pipelines import SanaLongVideoPipeline

        torch.set_num_threads(1)
        pipe = SanaLongVideoPipeline.from_pretrained({str(tmp_path / "model")!r})
        frames = pipe.stream(
            state={str(tmp_path / "state.safetensors")!r}, output_type="pt", frames=16,
        )
        save_file({{"frames": torch.stack(list(frames))}}, {str(tmp_path / "rest.safetensors")!r})
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
    from safetensors.torch import load_file

    rest = load_file(tmp_path / "rest.safetensors")["frames"]
    assert torch.equal(rest, expected[FIRST + 3 :])


def test_state_of_another_kind_of_file(long_video, few, tmp_path):
    stream = long_video.stream("a", **few)
    stream.state.transformer.save(tmp_path / "half.safetensors")
    with pytest.raises(WeightsError, match="expected"):
        StreamState.load(tmp_path / "half.safetensors", long_video.codec)
