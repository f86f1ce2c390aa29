"""What self- and cross-attention share: heads and query/key norms."""

from __future__ import annotations

from torch import Tensor

from sana_like.layers.norm import RMSNorm

QK_NORMS = (None, "rms_norm_across_heads")
# Both attentions use it, whatever the blocks' own `norm_eps` is.
QK_NORM_EPS = 1e-5


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`[B, N, H*D]` to `[B, N, H, D]`."""
    return x.unflatten(-1, (heads, -1))


def qk_norms(kind: str | None, width: int) -> tuple[RMSNorm | None, RMSNorm | None]:
    """Norms of query and key, each over all heads together (SANA-1.5, arXiv 2501.18427).

    Args:
        kind: `None` or `"rms_norm_across_heads"`.
        width: H*D.

    Raises:
        ValueError: `kind` is something else.
    """
    if kind not in QK_NORMS:
        raise ValueError(f"qk_norm={kind!r} is not one of {QK_NORMS}")
    if kind is None:
        return None, None
    return RMSNorm(width, eps=QK_NORM_EPS), RMSNorm(width, eps=QK_NORM_EPS)
