"""A stream, chunk by chunk, is one pass under the block-causal mask; its state never grows."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from sana_like.layers.rope import rope_3d
from sana_like.layers.temporal import GLUMBConvTemp
from sana_like.state import State
from sana_like.transformers.video import SanaVideoTransformer3DModel
from sana_like_kernels.linear_attention.reference import turn

NARROW = {
    "in_channels": 4,
    "out_channels": 4,
    "patch_size": (1, 1, 1),
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 3,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 16,
    "cross_attention_dim": 32,
    "caption_channels": 12,
}
SIZE = (2, 3)


def error(out, wanted):
    return float((out.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.fixture
def model(shake):
    return shake(SanaVideoTransformer3DModel(**NARROW))


def stream(model, clip, text, times, chunks, state=None):
    """The clip in as many passes as there are chunks."""
    state = state or model.new_state(len(clip), *clip.shape[-2:])
    parts = zip(clip.split(chunks, dim=2), times.split(chunks, dim=1), strict=True)
    outs = []
    for part, time in parts:
        result = model(part, text, time, state=state)
        outs.append(result.sample)
        state = result.state
    return torch.cat(outs, dim=2), state


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@torch.no_grad()
def test_streaming_is_one_pass_under_the_block_causal_mask(size, model):
    count = {1: 40, 2: 17, 3: 5, 4: 2, 5: 9}[size]
    chunks = [size] * count
    clip, text = torch.randn(2, 4, sum(chunks), *SIZE), torch.randn(2, 5, 12)
    times = torch.rand(2, sum(chunks)) * 1000
    state = model.new_state(2, *SIZE)
    whole = model(clip, text, times, state=state, chunks=chunks)
    parts, after = stream(model, clip, text, times, chunks)
    assert error(parts, whole.sample) <= 1e-4
    assert after.frames == whole.state.frames == sum(chunks)
    for key, tensor in whole.state.tensors().items():
        assert error(after.tensors()[key], tensor) <= 1e-4


@torch.no_grad()
def test_chunks_of_unequal_length(model):
    chunks = [4, 1, 3, 2]
    clip, text, times = torch.randn(1, 4, 10, *SIZE), torch.randn(1, 5, 12), torch.rand(1, 10)
    whole = model(clip, text, times, state=model.new_state(1, *SIZE), chunks=chunks).sample
    assert error(stream(model, clip, text, times, chunks)[0], whole) <= 1e-5


@torch.no_grad()
def test_one_chunk_is_the_whole_clip(model):
    clip, text = torch.randn(2, 4, 4, *SIZE), torch.randn(2, 5, 12)
    streamed = model(clip, text, 500.0, state=model.new_state(2, *SIZE)).sample
    assert error(streamed, model(clip, text, 500.0).sample) <= 1e-6


@torch.no_grad()
def test_the_mixer_is_attention_under_an_explicit_mask(model):
    """The definition, with all products written out and the mask of blocks laid over them."""
    mixer, grid, chunks = model.transformer_blocks[0].attn1, (5, *SIZE), [2, 1, 2]
    x, rope = torch.randn(2, 30, 32), rope_3d(16, grid)
    out, _ = mixer(
        x, grid=grid, rope=rope, state=mixer.new_state(2, x.device, x.dtype), chunks=chunks
    )
    parts = [mixer.norm_q(mixer.to_q(x)), mixer.norm_k(mixer.to_k(x)), mixer.to_v(x)]
    query, key, value = (part.double().unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
    query, key = query.relu(), key.relu()
    tables = [table.double() for table in rope]
    scores = turn(query, *tables) @ turn(key, *tables).transpose(-1, -2)  # [B, H, N, N]
    chunk_of = torch.tensor([0] * 12 + [1] * 6 + [2] * 12)
    allowed = chunk_of[:, None] >= chunk_of[None]
    total = (query @ key.transpose(-1, -2) * allowed).sum(-1, keepdim=True)
    wanted = (scores * allowed / total) @ value
    wanted = mixer.to_out[0](wanted.transpose(1, 2).flatten(2).float())
    assert error(out, wanted) <= 1e-5


@torch.no_grad()
def test_nothing_reads_the_next_chunk_and_everything_reads_its_own(model):
    clip, text = torch.randn(1, 4, 6, *SIZE), torch.randn(1, 5, 12)
    chunks, times = [2, 2, 2], torch.full((1, 6), 300.0)

    def run(changed):
        state = model.new_state(1, *SIZE)
        return model(changed, text, times, state=state, chunks=chunks).sample

    base, later = run(clip), clip.clone()
    later[:, :, 3] += 1
    moved = (run(later) - base).abs().amax(dim=(0, 1, 3, 4))
    assert not moved[:2].any()
    assert (moved[2:] > 1e-4).all()


@torch.no_grad()
def test_the_temporal_convolution_is_causal_across_chunks():
    layer = GLUMBConvTemp(6, 6, 2.0)
    torch.nn.init.normal_(layer.conv_temp.weight)
    x = torch.randn(2, 6, *SIZE, 6)
    flat = GLUMBConvTemp.__bases__[0].forward(layer, x.flatten(0, 1)).unflatten(0, (2, 6))
    kernel = layer.conv_temp.publish(layer.conv_temp.weight)[..., 0]  # [O, I, 3]
    line = flat.flatten(2, 3).permute(0, 2, 3, 1).flatten(0, 1)  # [B*S, C, F]
    state, wanted = layer.new_state(2, 6, x.device, x.dtype), []
    for first, last in [(0, 3), (3, 4), (4, 6)]:
        left = line[..., first - 1 : first] if first else torch.zeros_like(line[..., :1])
        part = torch.cat([left, line[..., first:last], torch.zeros_like(left)], dim=-1)
        wanted.append(line[..., first:last] + F.conv1d(part, kernel))
    wanted = torch.cat(wanted, dim=-1).unflatten(0, (2, 6)).permute(0, 3, 1, 2)
    out, after = layer(x, state=state, chunks=[3, 1, 2])
    assert error(out.flatten(2, 3), wanted) <= 1e-6
    assert torch.equal(after["tail"][:, 0], flat[:, -1].flatten(1, 2))


@torch.no_grad()
def test_state_bytes_and_operations_per_chunk_do_not_change(model):
    text, state = torch.randn(1, 5, 12), model.new_state(1, *SIZE)
    size, counts, owned = state.nbytes, set(), set()
    assert size == model.state_bytes(*SIZE)
    # Sums D * (D + 1) per head in fp32, and the last frame of each feed-forward.
    assert size == 3 * (2 * 16 * 17 + 6 * 32) * 4
    for _ in range(12):
        with FlopCounterMode(display=False) as counter:
            state = model(torch.randn(1, 4, 3, *SIZE), text, 10.0, state=state).state
        counts.add(counter.get_total_flops())
        owned.add(sum(t.untyped_storage().nbytes() for t in state.tensors().values()))
    assert state.nbytes == size and owned == {size} and len(counts) == 1
    assert state.frames == 36


@torch.no_grad()
def test_a_pass_whose_state_is_dropped_leaves_no_trace_and_states_fork(model):
    text = torch.randn(1, 5, 12)
    state = model(torch.randn(1, 4, 2, *SIZE), text, 0.0, state=model.new_state(1, *SIZE)).state
    kept = state.clone()
    clips = torch.randn(2, 1, 4, 2, *SIZE)
    both = [model(clip, text, 0.0, state=state) for clip in clips]
    for key, tensor in kept.tensors().items():
        assert torch.equal(tensor, state.tensors()[key])
    twice = state.repeat(2)
    joined = model(clips[:, 0], text.expand(2, -1, -1), 0.0, state=twice)
    assert error(joined.sample, torch.cat([out.sample for out in both])) <= 1e-6
    again = State.cat([out.state for out in both])
    assert (
        len(again) == 2
        and error(
            again.rows([1]).tensors()["blocks.2.mixer.key_sum"],
            both[1].state.tensors()["blocks.2.mixer.key_sum"],
        )
        == 0
    )


@pytest.fixture
def paused(model, tmp_path):
    """A model and a stream's state in files, the next chunk, and what it gives."""
    text, begin = torch.randn(1, 5, 12), model.new_state(1, *SIZE)
    with torch.no_grad():
        state = model(torch.randn(1, 4, 3, *SIZE), text, 0.0, state=begin).state
        inputs = (torch.randn(1, 4, 2, *SIZE), text, 700.0)
        wanted = model(*inputs, state=state).sample
    state.save(tmp_path / "state.safetensors")
    model.save_pretrained(tmp_path / "model")
    return tmp_path, inputs, wanted


@torch.no_grad()
def test_a_saved_stream_goes_on_bit_for_bit(paused):
    folder, inputs, wanted = paused
    model = SanaVideoTransformer3DModel.from_pretrained(folder / "model")
    state = State.load(folder / "state.safetensors")
    assert torch.equal(model(*inputs, state=state).sample, wanted)


CONTINUE = """
import sys, torch
from sana_like import SanaVideoTransformer3DModel, State
torch.set_num_threads(1)
model = SanaVideoTransformer3DModel.from_pretrained(sys.argv[1] + "/model")
inputs = torch.load(sys.argv[1] + "/inputs.pt")
with torch.no_grad():
    out = model(*inputs, state=State.load(sys.argv[1] + "/state.safetensors"))
torch.save(out.sample, sys.argv[1] + "/out.pt")
"""


@pytest.mark.slow
def test_it_does_so_in_another_process(paused):
    folder, inputs, wanted = paused
    torch.save(inputs, folder / "inputs.pt")
    subprocess.run([sys.executable, "-c", CONTINUE, str(folder)], check=True)
    assert torch.equal(torch.load(folder / "out.pt"), wanted)


@torch.no_grad()
def test_bf16_streams_keep_fp32_sums(model):
    clip, text = torch.randn(1, 4, 6, *SIZE), torch.randn(1, 5, 12)
    times = torch.full((1, 6), 300.0)
    exact, _ = stream(model, clip, text, times, [2, 2, 2])
    out, state = stream(model.bfloat16(), clip.bfloat16(), text.bfloat16(), times, [2, 2, 2])
    assert out.dtype == torch.bfloat16 and error(out, exact) <= 0.03
    assert state.blocks[0].mixer["key_value"].dtype == torch.float32
    assert state.blocks[0].feed_forward["tail"].dtype == torch.bfloat16


def test_gradients_flow_through_the_state_and_checkpointing_changes_nothing(model):
    clip, text = torch.randn(1, 4, 4, *SIZE), torch.randn(1, 5, 12)

    def gradients():
        model.zero_grad()
        out, _ = stream(model, clip, text, torch.full((1, 4), 9.0), [2, 2])
        out[:, :, 2:].square().sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    model.enable_gradient_checkpointing()
    again = gradients()
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient)
    state = model(clip, text, 0.0, state=model.new_state(1, *SIZE)).state
    assert state.blocks[0].mixer["key_value"].requires_grad
    assert not state.detach().blocks[0].mixer["key_value"].requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunks": [2, 1]}, "without a state"),
        ({"chunks": [2, 2], "state": (1, *SIZE)}, "sum to the 3 frames"),
        ({"chunks": [3, 0], "state": (1, *SIZE)}, "must be positive"),
        ({"state": (2, *SIZE)}, "new_state"),
        ({"state": (1, 3, 3)}, "new_state"),
        ({"timestep": torch.zeros(1, 18)}, "never one for each token"),
        ({"timestep": torch.zeros(1, 2)}, "latent frames"),
        ({"skipped_layers": [3]}, "blocks 0 to 2"),
    ],
)
def test_wrong_streams_are_refused_before_any_block_runs(arguments, message, model):
    arguments = {"timestep": 1.0} | arguments
    if "state" in arguments:
        arguments["state"] = model.new_state(*arguments["state"])
    for block in model.transformer_blocks:
        block.register_forward_pre_hook(lambda *_: pytest.fail("a block ran"))
    with pytest.raises(ValueError, match=message):
        model(torch.randn(1, 4, 3, *SIZE), torch.randn(1, 5, 12), **arguments)


@torch.no_grad()
def test_softmax_attention_streams_alike_but_its_state_grows(shake):
    model = shake(SanaVideoTransformer3DModel(**NARROW, self_attention="softmax"))
    linear = SanaVideoTransformer3DModel(**NARROW)
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (model, linear)]
    assert shapes[0] == shapes[1]
    clip, text, times = torch.randn(1, 4, 6, *SIZE), torch.randn(1, 5, 12), torch.rand(1, 6)
    begin = model.new_state(1, *SIZE)
    whole = model(clip, text, times, state=begin, chunks=[2, 1, 3])
    parts, after = stream(model, clip, text, times, [2, 1, 3])
    assert error(parts, whole.sample) <= 1e-5
    assert error(model(clip, text, 9.0, state=begin).sample, model(clip, text, 9.0).sample) <= 1e-5
    # Keys and values of 6 frames of 6 tokens, 32 wide, in 3 blocks, over the start.
    assert after.nbytes - begin.nbytes == 3 * 2 * 6 * 6 * 32 * 4
    with pytest.raises(ValueError, match="not one of"):
        SanaVideoTransformer3DModel(**NARROW, self_attention="sparse")
    with pytest.raises(ValueError, match="attention_clip"):
        SanaVideoTransformer3DModel(**NARROW, self_attention="softmax", attention_clip=1.0)


@pytest.mark.parametrize("size", [(0, 2, 3), (1, 0, 3), (1, 2, 5)])
def test_states_of_no_size_are_refused(size, shake):
    model = SanaVideoTransformer3DModel(**NARROW | {"patch_size": (1, 2, 2)})
    with pytest.raises(ValueError, match="cannot be made"):
        model.new_state(*size)


@pytest.mark.slow
@torch.no_grad()
def test_a_stream_is_one_graph_for_the_compiler_whatever_has_passed(model):
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    clip, text = torch.randn(1, 4, 10, *SIZE), torch.randn(1, 5, 12)
    times = torch.full((1, 10), 300.0)
    wanted, _ = stream(model, clip, text, times, [2] * 5)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    state, outs = model.new_state(1, *SIZE), []
    context = model.prepare_text(text)
    for part, time in zip(clip.split(2, dim=2), times.split(2, dim=1), strict=True):
        result = compiled(part, context, time, state=state)
        outs.append(result.sample)
        state = result.state
    assert error(torch.cat(outs, dim=2), wanted) <= 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
