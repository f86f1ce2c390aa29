"""Text features of all captions of a run, encoded once and kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from filelock import FileLock
from torch import Tensor, nn

from sana_like_train.cache import fingerprint, read_tensors, write_tensors

if TYPE_CHECKING:
    from sana_like.text.encoder import PromptEncoder
    from sana_like.transformers.image import SanaTransformer2DModel

logger = logging.getLogger(__name__)

_CHUNK = 256
_LEAST_STD = 0.1


@dataclass(frozen=True)
class PackedText:
    """Features of many texts, end to end.

    Attributes:
        index: position of every text.
        rows: `[T, C]` bf16, the real tokens of all texts one after the other.
        offsets: `[texts + 1]` int64, where each text starts.
    """

    index: dict[str, int]
    rows: Tensor
    offsets: Tensor

    def batch(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Features `[B, L, C]` fp32 and mask `[B, L]` bool, padded to the longest of the texts."""
        spans = [
            (int(self.offsets[i]), int(self.offsets[i + 1]))
            for i in (self.index[text] for text in texts)
        ]
        length = max(end - start for start, end in spans)
        embeds = torch.zeros(len(texts), length, self.rows.shape[1])
        mask = torch.zeros(len(texts), length, dtype=torch.bool)
        for row, (start, end) in enumerate(spans):
            embeds[row, : end - start] = self.rows[start:end]
            mask[row, : end - start] = True
        return embeds, mask


def pack_texts(texts: Sequence[str], encoder: PromptEncoder, folder: Path) -> PackedText:
    """Features of the distinct texts, from the cache folder where they were encoded before.

    Args:
        texts: captions; repeated ones are encoded once.
        encoder: of the model that is trained.
        folder: of all caches.
    """
    distinct = sorted(set(texts))
    settings = json.dumps(encoder.settings.to_dict(), sort_keys=True)
    name = fingerprint(encoder.fingerprint, settings, *distinct)
    path = folder / "text" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            logger.info("encoding %d captions into %s", len(distinct), path)
            write_tensors(path, _encode(distinct, encoder))
    tensors = read_tensors(path)
    index = {text: position for position, text in enumerate(distinct)}
    return PackedText(index, tensors["rows"], tensors["offsets"])


def _encode(texts: list[str], encoder: PromptEncoder) -> dict[str, Tensor]:
    # Similar lengths together: batches are padded to their longest text.
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    features: list[Tensor] = [torch.empty(0)] * len(texts)
    for start in range(0, len(order), _CHUNK):
        chosen = order[start : start + _CHUNK]
        encoding = encoder.encode([texts[i] for i in chosen])
        for row, i in enumerate(chosen):
            features[i] = encoding.embeds[row, encoding.mask[row]].to("cpu", torch.bfloat16)
        logger.info("encoded %d of %d captions", start + len(chosen), len(texts))
    lengths = torch.tensor([len(rows) for rows in features])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    return {"rows": torch.cat(features), "offsets": offsets}


@torch.no_grad()
def fit_text_input(model: SanaTransformer2DModel, text: PackedText) -> None:
    """Start a new model's caption projection where these texts differ.

    Decoder features share a large constant vector, and the published start weighs text by 0.01
    (SANA, section 3.3), which calms a billion parameters and slows a small model down. Here the
    first linear layer begins on features of zero mean and unit variance, and the text's norm
    begins at one.

    Args:
        model: changed in place.
        text: features of the captions that it will be trained on.
    """
    rows = text.rows.float()  # [T, C]
    std = rows.std(dim=0).clamp_min(_LEAST_STD)
    first, second = model.caption_projection.linear_1, model.caption_projection.linear_2
    nn.init.xavier_uniform_(first.weight)
    nn.init.xavier_uniform_(second.weight)
    first.weight.div_(std.to(first.weight))
    first.bias.copy_(-(first.weight @ rows.mean(dim=0).to(first.weight)))
    nn.init.ones_(model.caption_norm.weight)
