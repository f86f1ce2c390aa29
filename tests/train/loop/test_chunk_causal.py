"""Chunk by chunk: training sees what streaming sees, and two clips are learned by heart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sana_like import SanaVideoTransformer3DModel
from sana_like.schedulers.chunked import few_step_chunk, write_state
from sana_like.schedulers.flow import add_noise, make_sigmas
from sana_like.state import State
from sana_like_train.sections import TimeSampling
from sana_like_train.tasks.chunk_causal import (
    ChunkCausalObjective,
    ChunkPredictor,
    make_video,
    many_step_chunk,
)
from sana_like_train.tasks.few_step import few_step_video
from sana_like_train.tasks.few_step_pairs import Paths, follow, path_levels
from sana_like_train.tasks.flow_matching import (
    FlowMatchingObjective,
    guide,
    levels_of,
    sample_flow,
    sample_sigmas,
)
from sana_like_train.tasks.self_forcing import SelfForcingCritic, SelfForcingObjective
from sana_like_train.video_sections import FewStepPairsTask, SelfForcingTask

MODEL = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 2,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 32,
    "caption_channels": 8,
    "patch_size": (1, 1, 1),
}
FRAMES = 5


def _model(seed: int = 0) -> SanaVideoTransformer3DModel:
    torch.manual_seed(seed)
    model = SanaVideoTransformer3DModel(**MODEL)
    with torch.no_grad():
        for block in model.transformer_blocks:  # which begin at zero
            block.ff.conv_temp.weight.normal_(std=0.1)
    return model


def _batch(rows: int = 2) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        "latents": torch.randn(rows, 4, FRAMES, 2, 2),
        "noise": torch.randn(rows, 4, FRAMES, 2, 2),
        "sigmas": torch.rand(rows, FRAMES),
        "text": torch.randn(rows, 3, 8),
        "text_mask": torch.ones(rows, 3, dtype=torch.bool),
    }


def _error(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("clean_past", [True, False])
@torch.no_grad()
def test_the_objective_sees_what_a_stream_sees(clean_past: bool) -> None:
    model, batch = _model().eval(), _batch()
    batch["clean_past"] = torch.tensor(clean_past)
    noisy = add_noise(batch["latents"], batch["noise"], levels_of(batch["sigmas"], batch["noise"]))
    output = ChunkCausalObjective(model, 2).velocity(batch, noisy)
    state, parts = model.new_state(2, 2, 2), []
    for start, stop in ((0, 3), (3, 5)):  # the first chunk takes what does not fill one
        span = slice(start, stop)
        times = 1000 * batch["sigmas"][:, span]
        made = model(noisy[:, :, span], batch["text"], times, state=state)
        parts.append(made.sample)
        past = model(batch["latents"][:, :, span], batch["text"], 0.0, state=state).state
        state = past if clean_past else made.state
    assert _error(output, torch.cat(parts, dim=2)) <= 1e-5


def test_a_frame_never_learns_from_later_chunks() -> None:
    model, batch = _model(), _batch()
    noisy = batch["noise"].clone().requires_grad_()
    for clean_past in (True, False):
        batch["clean_past"] = torch.tensor(clean_past)
        output = ChunkCausalObjective(model, 2).velocity(batch, noisy)
        (reach,) = torch.autograd.grad(output[:, :, :3].square().sum(), noisy)
        assert not reach[:, :, 3:].any() and reach[:, :, :3].any()


def test_given_frames_are_not_predicted() -> None:
    batch = _batch()
    batch["sigmas"][:, 0] = 0.0
    objective = FlowMatchingObjective(_model(), temporal_weight=0.5)
    out = objective(batch)
    noisy = add_noise(batch["latents"], batch["noise"], levels_of(batch["sigmas"], batch["noise"]))
    assert torch.equal(noisy[:, :, 0], batch["latents"][:, :, 0])
    difference = objective.velocity(batch, noisy) - (batch["noise"] - batch["latents"])
    difference = torch.cat([torch.zeros_like(difference[:, :, :1]), difference[:, :, 1:]], dim=2)
    error = difference[:, :, 1:].square().mean((1, 2, 3, 4))
    change = difference.diff(dim=2).square().mean((1, 2, 3, 4))
    assert torch.allclose(out["per_sample"], error + 0.5 * change, rtol=1e-5)


@pytest.mark.parametrize("chunk", [None, 2])
def test_two_clips_are_learned_and_made_again(chunk: int | None) -> None:
    model, batch = _model(), _batch()
    objective = (
        FlowMatchingObjective(model) if chunk is None else ChunkCausalObjective(model, chunk)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    draws = torch.Generator().manual_seed(2)
    losses = []
    for step in range(500):
        sigmas = sample_sigmas(TimeSampling(), 4, draws)[:, None].expand(-1, FRAMES)
        twice = {key: torch.cat([value, value]) for key, value in batch.items()}
        twice |= {"sigmas": sigmas, "noise": torch.randn(4, 4, FRAMES, 2, 2, generator=draws)}
        loss = objective(twice)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, 2 * (1 - step / 500))
    assert sum(losses[-20:]) < 0.2 * sum(losses[:20])
    model.eval()
    text, mask, noise = batch["text"], batch["text_mask"], torch.randn(batch["latents"].shape)
    sigmas = make_sigmas(10, shift=1.0, grid="nvlabs").tolist()
    with torch.no_grad():
        if chunk is None:
            made = sample_flow(
                lambda x, s: objective.predict(x, torch.full((2,), s), text, mask), noise, sigmas
            )
        else:
            predict = ChunkPredictor(model, text, mask)

            def make_chunk(start: Tensor, state: State, _: Tensor | None) -> Tensor:
                return many_step_chunk(predict, start, state, sigmas)

            made = make_video(predict, noise, chunk, make_chunk)
    assert _error(made, batch["latents"]) < 0.35
    assert _error(made.flip(0), batch["latents"]) > 1.0  # and not each other's


@torch.no_grad()
def test_guided_rows_have_pasts_of_their_own() -> None:
    model, batch = _model().eval(), _batch()
    empty, text, mask = torch.randn(2, 3, 8), batch["text"], batch["text_mask"]
    guided = ChunkPredictor(model, torch.cat([empty, text]), torch.cat([mask, mask]), 3.0)
    sides = [ChunkPredictor(model, one, mask) for one in (empty, text)]
    x, times = batch["noise"][:, :, :2], torch.full((2, 2), 400.0)
    state = write_state(guided, batch["latents"][:, :, :2], guided.new_state(x))
    states = [write_state(side, batch["latents"][:, :, :2], side.new_state(x)) for side in sides]
    rows = [side(x, times, past, (2,))[0] for side, past in zip(sides, states, strict=True)]
    assert _error(guided(x, times, state, (2,))[0], guide(torch.cat(rows), 3.0)) <= 1e-5


@pytest.mark.parametrize("given", [False, True])
@torch.no_grad()
def test_paths_pass_where_the_teacher_passes(given: bool) -> None:
    config = FewStepPairsTask(chunk=2, levels=(1.0, 0.6, 0.3), teacher_steps=2)
    assert path_levels(config.levels, 2) == pytest.approx([1, 0.8, 0.6, 0.45, 0.3, 0.15, 0])
    model, batch = _model().eval(), _batch()
    predict = ChunkPredictor(model, batch["text"], batch["text_mask"])
    first = batch["latents"][:, :, :1] if given else None
    points = follow(predict, batch["noise"], config, first=first)
    assert points.shape == (2, 4, 4, FRAMES, 2, 2)
    if given:
        assert torch.equal(points[:, :, :, :1], first[:, None].expand(-1, 4, -1, -1, -1, -1))
    else:
        assert torch.equal(points[:, 0], batch["noise"])
    # A teacher that goes on from a point ends where the path ends.
    x, state = points[:, 1, :, :3], predict.new_state(batch["noise"])
    sigmas = path_levels(config.levels, 2)[2:]
    end = many_step_chunk(predict, x, state, sigmas, clean=None if first is None else first)
    assert _error(end, points[:, -1, :, :3]) <= 1e-5
    paths = Paths(["a", "b"], points, [given, given], config.levels)
    steps = torch.tensor([[0, 1, 2, 1, 0], [2, 2, 1, 0, 0]])
    made = paths.batch([0, 1], steps)
    noisy = add_noise(made["latents"], made["noise"], levels_of(made["sigmas"], made["noise"]))
    for row in range(2):
        for frame in range(int(given), FRAMES):
            wanted = points[row, steps[row, frame], :, frame]
            assert torch.allclose(noisy[row, :, frame], wanted, atol=1e-5)
    assert bool((made["sigmas"][:, 0] == 0).all()) == given


def _forcing(trained: int, guidance: float = 2.0) -> SelfForcingTask:
    return SelfForcingTask(
        teacher="t", chunk=2, levels=(1.0, 0.7, 0.4), trained_chunks=trained,
        teacher_guidance=guidance,
    )  # fmt: skip


def _videos(rows: int = 2, chunks: int = 3) -> dict[str, Tensor]:
    torch.manual_seed(3)
    shape = (rows, 4, 2 * chunks, 2, 2)
    return {
        "noise": torch.randn(shape),
        "score_noise": torch.randn(shape),
        "critic_noise": torch.randn(shape),
        "redraws": torch.randn(2, *shape),
        "exits": torch.tensor([0, 1, 2][:chunks]),
        "score_sigmas": torch.rand(rows, chunks),
        "critic_sigmas": torch.rand(rows, chunks),
        "text": torch.randn(2 * rows, 3, 8),
        "text_mask": torch.ones(2 * rows, 3, dtype=torch.bool),
    }


@pytest.mark.parametrize("half", [False, True])
def test_self_forcing_moves_the_student_alone(half: bool) -> None:
    student, teacher, critic = (_model(seed).train() for seed in range(3))
    objective = SelfForcingObjective(student, teacher, critic, _forcing(1))
    objective.train()
    assert not teacher.training
    critic.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        out = objective(_videos())
    out["loss"].backward()
    lacking = [name for name, p in student.named_parameters() if p.grad is None or not p.grad.any()]
    assert not lacking
    assert all(p.grad is None for p in [*teacher.parameters(), *critic.parameters()])
    critic.requires_grad_(True)
    judged = SelfForcingCritic(critic)(out["carry"])
    student.zero_grad()
    judged["loss"].backward()
    assert all(p.grad is not None for p in critic.parameters())
    assert not any(p.grad is not None and p.grad.any() for p in student.parameters())


@torch.no_grad()
def test_self_forcing_makes_the_videos_that_the_sampler_makes() -> None:
    """The chunks before the trained ones, by all steps; the critic is told the last one."""
    student = _model().eval()
    config, batch = _forcing(1), _videos()
    batch["exits"][:] = 2
    critic = _model(2)
    out = SelfForcingObjective(student, _model(1), critic, config)(batch)
    assert out["loss"] == 0  # without gradients nothing is compared
    ((told, critic_state),) = out["carry"]["chunks"]
    text, mask = batch["text"][2:], batch["text_mask"][2:]
    predict, judge = ChunkPredictor(student, text, mask), ChunkPredictor(critic, text, mask)
    state, states = predict.new_state(batch["noise"]), judge.new_state(batch["noise"])
    for start in (0, 2, 4):
        span = slice(start, start + 2)
        redraws = iter(batch["redraws"][:, :, :, span])
        made = few_step_chunk(
            predict, batch["noise"][:, :, span], state, lambda _, r=redraws: next(r),
            levels=config.levels,
        )  # fmt: skip
        if start < 4:
            state, states = write_state(predict, made, state), write_state(judge, made, states)
    assert _error(told["latents"], made) <= 1e-5
    for name, tensor in states.tensors().items():
        assert torch.allclose(critic_state.tensors()[name], tensor, atol=1e-5), name


def test_gradients_end_at_the_last_step_of_a_trained_chunk() -> None:
    """So the graph of a video is that of one pass for each trained chunk, however long it is."""
    student, teacher, critic = (_model(seed) for seed in range(3))
    calls: list[bool] = []
    student.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    objective = SelfForcingObjective(student, teacher, critic.requires_grad_(False), _forcing(2))
    objective(_videos())
    # Chunk 0: three steps and its writing. Chunk 1 ends at its second step, chunk 2 at its third.
    assert calls == [False] * 4 + [False, True, False] + [False, False, True]


@torch.no_grad()
def test_few_step_videos_are_the_same_for_the_same_noise() -> None:
    batch = _batch()
    predict = ChunkPredictor(_model().eval(), batch["text"], batch["text_mask"])
    first = batch["latents"][:, :, :1]
    made = [few_step_video(predict, batch["noise"], 2, (1.0, 0.5), first) for _ in range(2)]
    assert torch.equal(*made) and torch.equal(made[0][:, :, :1], first)
