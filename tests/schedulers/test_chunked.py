"""Chunks: who reads whose state when, which levels they stand at, and where they end."""

from __future__ import annotations

import itertools

import pytest
import torch

from sana_like.schedulers.chunked import (
    PUBLISHED_TIMES,
    chunk_lengths,
    few_step_levels,
    frame_times,
    hold_frames,
    self_forcing_chunk,
    staggered_steps,
    staggered_stream,
)
from sana_like.schedulers.flow import make_sigmas
from sana_like.schedulers.flow_dpm_solver import FlowDPMSolverScheduler
from sana_like.schedulers.flow_euler import FlowEulerScheduler

SHAPE = (2, 3, 4, 5)


class Network:
    """Knows the clip: its velocity leads straight there. The state is the number of clean frames.

    Every call checks that frames stand where their times say, and is recorded.
    """

    def __init__(self, clip):
        self.clip, self.calls = clip, []

    def __call__(self, latents, times, state, chunks):
        frames = latents.shape[2]
        assert sum(chunks) == frames and times.shape == (len(latents), frames)
        self.calls.append((state, chunks, times[0].tolist()))
        target = self.clip[:, :, state : state + frames].to(latents)
        sigma = (times / 1000).view(len(latents), 1, frames, 1, 1)
        clean = times == 0
        away = (latents - target).abs().amax(dim=(1, 3, 4))
        assert (away[clean] < 1e-5).all(), "a frame at time 0 is not clean"
        velocity = torch.where(sigma > 0, (latents - target) / sigma.clamp(min=1e-6), 0.0)
        return velocity, state + frames


@pytest.fixture
def clip():
    return torch.randn(2, 3, 14, 4, 5)


def drawing(frames):
    return torch.randn(2, 3, frames, 4, 5)


@pytest.mark.parametrize(
    ("frames", "chunk", "wanted"),
    [(21, 10, (11, 10)), (20, 10, (10, 10)), (3, 10, (3,)), (1, 1, (1,)), (7, 2, (3, 2, 2))],
)
def test_the_first_chunk_takes_the_rest(frames, chunk, wanted):
    assert chunk_lengths(frames, chunk) == wanted


def test_published_few_step_times():
    assert tuple(1000 * level for level in few_step_levels()) == PUBLISHED_TIMES
    assert few_step_levels(1) == (1.0,)


def test_times_of_frames():
    times = frame_times(torch.tensor([500.0, 20.0]), 2, 3, clean_frames=1)
    assert times.tolist() == [[0, 500, 500], [0, 20, 20]]
    assert frame_times(7.5, 2, 2).tolist() == [[7.5, 7.5]] * 2
    with pytest.raises(ValueError, match="4 clean frames"):
        frame_times(1.0, 1, 3, clean_frames=4)


def test_self_forcing_reaches_the_clip_and_writes_the_state_once_per_chunk(clip):
    network, state, made, steps = Network(clip), 0, [], []
    for frames in chunk_lengths(14, 4):
        chunk, state = self_forcing_chunk(
            network, drawing(frames), state, drawing, after_step=lambda i, x: steps.append(i)
        )
        made.append(chunk)
    torch.testing.assert_close(torch.cat(made, dim=2), clip, atol=1e-4, rtol=1e-4)
    assert state == 14 and steps == [0, 1, 2, 3] * 3
    # Four passes read the same state; the fifth is clean and is the one that is kept.
    assert [call[0] for call in network.calls] == [0] * 5 + [6] * 5 + [10] * 5
    assert [call[2][0] for call in network.calls[:5]] == [*PUBLISHED_TIMES, 0]


def test_a_given_picture_stays_as_it_is(clip):
    network, picture = Network(clip), clip[:, :, :1]
    chunk, _ = self_forcing_chunk(network, drawing(4), 0, drawing, clean=picture)
    assert torch.equal(chunk[:, :, :1], picture)
    assert [call[2][:2] for call in network.calls[:4]] == [[0, t] for t in PUBLISHED_TIMES]


def test_steps_can_be_stopped(clip):
    def stop(index, x):
        if index == 1:
            raise KeyboardInterrupt

    network = Network(clip)
    with pytest.raises(KeyboardInterrupt):
        self_forcing_chunk(network, drawing(4), 0, drawing, after_step=stop)
    assert len(network.calls) == 2


SIGMAS = make_sigmas(4, shift=3.0).tolist()


@pytest.mark.parametrize("interval", [1, 2, 3, 4])
def test_staggered_levels(interval):
    steps = list(staggered_steps(SIGMAS, interval, chunks=5))
    assert len(steps) == 4 + 4 * interval
    seen = {}
    for step in steps:
        assert all(a <= b for a, b in itertools.pairwise(step.levels)), "an earlier is noisier"
        assert not any(step.next_levels[1:].count(0) for _ in range(1))
        for chunk, pair in enumerate(zip(step.levels, step.next_levels, strict=True), step.first):
            seen.setdefault(chunk, []).append(pair)
    assert all(path == list(itertools.pairwise(SIGMAS)) for path in seen.values())
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert max(len(step.levels) for step in steps) == -(-4 // interval)
    if interval == 4:
        assert all(len(step.levels) == 1 for step in steps)


@pytest.mark.parametrize("interval", [1, 2, 4])
@pytest.mark.parametrize("given", [0, 1])
def test_staggered_stream_reaches_the_clip(interval, given, clip):
    network, made, states = Network(clip), [], []
    picture = clip[:, :, :given] if given else None
    stream = staggered_stream(
        network, chunk_lengths(14, 4), drawing, 0, sigmas=SIGMAS, interval=interval, clean=picture
    )
    for chunk, state in stream:
        made.append(chunk)
        states.append(state)
    torch.testing.assert_close(torch.cat(made, dim=2), clip, atol=1e-4, rtol=1e-4)
    assert states == [6, 10, 14]
    if given:
        assert torch.equal(made[0][:, :, :1], picture)
    # Passes over chunks in the making read finished chunks alone, and grow no longer than needed.
    assert {call[0] for call in network.calls} == {0, 6, 10}
    assert max(len(call[1]) for call in network.calls) == min(3, -(-4 // interval))
    assert sum(not any(call[2]) for call in network.calls) == 3


def test_a_stream_without_end_is_lazy(clip):
    drawn = []

    def draw(frames):
        drawn.append(frames)
        return drawing(frames)

    clip = clip.repeat(1, 1, 4, 1, 1)
    stream = staggered_stream(
        Network(clip), itertools.repeat(2), draw, 0, sigmas=SIGMAS, interval=2
    )
    assert not drawn
    chunks = [chunk for chunk, _ in itertools.islice(stream, 5)]
    torch.testing.assert_close(torch.cat(chunks, dim=2), clip[:, :, :10], atol=1e-4, rtol=1e-4)
    assert len(drawn) <= 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 0.5], 1), "fall to 0"),
        (([0.5, 0.7, 0.0], 1), "fall to 0"),
        (([1.0, 0.0], 2), "interval is 2"),
        (([1.0, 0.0], 0), "interval is 0"),
        (([1.0, 0.0], 1, 0), "0 chunks"),
    ],
)
def test_wrong_schedules_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        next(staggered_steps(*arguments))
    with pytest.raises(ValueError, match="1 or more"):
        chunk_lengths(0, 3)


@pytest.mark.parametrize("scheduler", [FlowDPMSolverScheduler, FlowEulerScheduler])
def test_samplers_of_whole_clips_keep_a_given_frame(scheduler, clip):
    network, sampler = Network(clip), scheduler()
    sampler.set_timesteps(6)
    x = hold_frames(drawing(14), clip[:, :, :1])
    for time in sampler.timesteps:
        times = frame_times(time, 2, 14, clean_frames=1)
        velocity, _ = network(x, times, 0, (14,))
        x = hold_frames(sampler.step(velocity, time, x, return_dict=False)[0], clip[:, :, :1])
    torch.testing.assert_close(x, clip, atol=1e-4, rtol=1e-4)
