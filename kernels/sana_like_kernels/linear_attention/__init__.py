"""ReLU linear attention over all tokens, or over all tokens so far."""

from __future__ import annotations

import torch
from torch import Tensor

from sana_like_kernels.arguments import (
    check_eps,
    check_rope,
    check_tensors,
    unit_stride,
    wide_table,
)
from sana_like_kernels.dispatch import Backend, unsupported_dtype, use_triton
from sana_like_kernels.inference import plain_inference
from sana_like_kernels.linear_attention.cpu import linear_attention_inference
from sana_like_kernels.linear_attention.reference import (
    Norms,
    Rope,
    State,
    linear_attention_reference,
    stateful_reference,
)

__all__ = ["block_causal_linear_attention", "linear_attention", "linear_attention_reference"]

# Widest head and widest token (of a fused norm) that the kernels hold at once.
WIDEST_HEAD = 128
WIDEST_NORM = 8192


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    eps: float = 1e-15,
    clip: float | None = None,
    rope: Rope | None = None,
    norms: Norms | None = None,
    norm_eps: float = 1e-5,
    backend: Backend | None = None,
) -> Tensor:
    """ReLU linear attention, non-causal, sums in fp32, result in the dtype of `query`.

    In every dtype the sums over tokens and channels of `|q k|` and of `|q k v|` must be numbers of
    fp32, below 3.4e38; beyond it the result means nothing. Activations of 1e10 are within it for a
    million tokens of width 128, activations of 1e13 are not.

    Args:
        query, key, value: `[B, N, H, D]`, any strides, of one floating dtype.
        eps: added to the normaliser.
        clip: clamp the result to `[-clip, clip]`, in every dtype alike. Some published fp16
            weights were made with 65504; `None` clamps nothing.
        rope: cosines and sines `[N, D / 2]` that rotate the pairs (2i, 2i + 1) of query and key
            after the ReLU, in the numerator only.
        norms: weights `[H * D]` of RMS norms of query and key over all heads, before the ReLU.
        norm_eps: of those norms.
        backend: `auto`, `triton` or `torch`; `None` takes that of `use_backend`.

    Returns:
        `[B, N, H, D]`.

    Raises:
        ValueError: the shapes differ or are not four-dimensional, dtypes differ or are integers,
            devices differ, `eps` is negative, `clip` is not positive, or `backend` cannot act.
    """
    _check_clip("linear_attention", clip)
    out, _ = _attend(
        "linear_attention", query, key, value, None, eps, rope, norms, norm_eps, backend
    )
    return out if clip is None else out.clamp(-clip, clip)


def block_causal_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: State | None = None,
    *,
    chunk_size: int | None = None,
    eps: float = 1e-15,
    clip: float | None = None,
    rope: Rope | None = None,
    norms: Norms | None = None,
    norm_eps: float = 1e-5,
    backend: Backend | None = None,
) -> tuple[Tensor, State]:
    """Linear attention where a token reads its own chunk and all chunks before it.

    A call takes the next tokens of a stream and the sums over the tokens before them, and returns
    the sums with these tokens: memory does not grow with the stream (SANA-Video, arXiv
    2509.24695, section 3.3).

    Args:
        query, key, value: `[B, N, H, D]`, the next tokens.
        state: fp32 sums `A [B, H, D, D]`, indexed by key then value channel, and `z [B, H, D]`;
            `None` at the start of a stream.
        chunk_size: tokens of a chunk; `None` takes all tokens of this call for one chunk.
        eps, clip, norms, norm_eps, backend: see `linear_attention`.
        rope: see `linear_attention`; row `n` belongs to token `n` of this call.

    Returns:
        `[B, N, H, D]` in the dtype of `query`, and the new state in fp32 (fp64 for fp64).

    Raises:
        ValueError: as `linear_attention`, the state does not fit, or `chunk_size` is below 1.
    """
    name = "block_causal_linear_attention"
    _check_clip(name, clip)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 token, got {chunk_size}")
    _check_state(query, state)
    outs = []
    for first in range(0, max(query.shape[1], 1), chunk_size or max(query.shape[1], 1)):
        chunk = slice(first, None if chunk_size is None else first + chunk_size)
        tables = None if rope is None else (rope[0][chunk], rope[1][chunk])
        q, k, v = query[:, chunk], key[:, chunk], value[:, chunk]
        out, state = _attend(name, q, k, v, state, eps, tables, norms, norm_eps, backend)
        outs.append(out)
    whole = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
    assert state is not None
    return (whole if clip is None else whole.clamp(-clip, clip)), state


def _attend(
    op: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: State | None,
    eps: float,
    rope: Rope | None,
    norms: Norms | None,
    norm_eps: float,
    backend: Backend | None,
) -> tuple[Tensor, State]:
    if query.ndim != 4 or not query.shape == key.shape == value.shape:
        raise ValueError(
            f"{op} needs query, key and value of one shape [B, N, H, D], got "
            f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        )
    norm_query, norm_key = norms or (None, None)
    tokens = {"query": query, "key": key, "value": value}
    check_tensors(op, tokens, norm_query=norm_query, norm_key=norm_key)
    check_eps(op, eps=eps, norm_eps=norm_eps)
    check_rope(op, query, rope)
    _, _, heads, width = query.shape
    if norms is not None and any(w.shape != (heads * width,) for w in norms):
        raise ValueError(
            f"{op} needs norm weights of shape ({heads * width},), got "
            f"{[tuple(w.shape) for w in norms]}"
        )
    obstacle = unsupported_dtype(query, key, value, *(norms or ()), *(state or ()))
    if width > WIDEST_HEAD:
        obstacle = f"head width {width} is over {WIDEST_HEAD}"
    if norms is not None and (heads * width > WIDEST_NORM or width % 2):
        obstacle = f"its norm takes an even head width and at most {WIDEST_NORM} channels"
    # Autocast would take the fp32 sums back to half precision.
    with torch.autocast(query.device.type, enabled=False):
        if not use_triton(op, backend, query.device, obstacle):
            plain = plain_inference(query, key, value, *(norms or ()), *(state or ()))
            compute = linear_attention_inference if plain else stateful_reference
            out, sums = compute(
                query, key, value, state, eps=eps, rope=rope, norms=norms, norm_eps=norm_eps
            )
            return out.to(query.dtype), sums
        from sana_like_kernels.linear_attention.launch import forward_op

        out, matrix, vector, _, _ = forward_op(
            *(unit_stride(x) for x in (query, key, value)),
            *((None, None) if norms is None else (w.contiguous() for w in norms)),
            *((None, None) if rope is None else map(wide_table, rope)),
            *((None, None) if state is None else state),
            eps,
            norm_eps,
        )
        return out, (matrix, vector)


def _check_clip(op: str, clip: float | None) -> None:
    if clip is not None and not clip > 0:
        raise ValueError(f"{op} needs a clip above 0, got {clip}; None clamps nothing")


def _check_state(query: Tensor, state: State | None) -> None:
    if state is None or query.ndim != 4:
        return
    check_tensors("block_causal_linear_attention", {"query": query}, A=state[0], z=state[1])
    b, _, h, d = query.shape
    shapes = tuple(tuple(x.shape) for x in state)
    if shapes != ((b, h, d, d), (b, h, d)) or any(
        x.dtype not in (torch.float32, torch.float64) for x in state
    ):
        raise ValueError(
            f"the state must be fp32 sums of shapes {(b, h, d, d)} and {(b, h, d)}, got "
            f"{shapes} of {[x.dtype for x in state]}"
        )
