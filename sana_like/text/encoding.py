"""Text features of a batch of prompts, in memory and in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sana_like.text.report import TokenReport
from sana_like.text.settings import TextSettings
from sana_like.weights.writer import write_safetensors

__all__ = ["TextEncoding", "TextEncodingError"]


class TextEncodingError(ValueError):
    """Stored text features are damaged, or were made by another encoder or with other settings."""


@dataclass(frozen=True)
class TextEncoding:
    """Features of B prompts.

    Raises:
        TextEncodingError: shapes or dtypes do not fit each other.
    """

    embeds: torch.Tensor
    """``[B, L, C]``, floating point; positions outside the mask are zero."""
    mask: torch.Tensor
    """``[B, L]``, bool: which positions hold a token; true positions come first in every row."""
    reports: tuple[TokenReport, ...] = field(default=(), compare=False)
    """One report per prompt; empty for loaded encodings."""

    def __post_init__(self) -> None:
        if self.embeds.ndim != 3 or self.mask.shape != self.embeds.shape[:2]:
            raise TextEncodingError(
                f"embeds {tuple(self.embeds.shape)} and mask {tuple(self.mask.shape)} do not fit: "
                "they must be [B, L, C] and [B, L]"
            )
        if self.mask.dtype != torch.bool:
            raise TextEncodingError(f"mask has dtype {self.mask.dtype}: it must be torch.bool")

    def __len__(self) -> int:
        return self.embeds.shape[0]

    def __getitem__(self, rows: slice | list[int]) -> TextEncoding:
        """The chosen prompts as a new encoding; tensors are views where slicing makes views."""
        chosen = range(len(self))[rows] if isinstance(rows, slice) else rows
        reports = tuple(self.reports[row] for row in chosen) if self.reports else ()
        return TextEncoding(self.embeds[rows], self.mask[rows], reports)

    def trimmed(self) -> TextEncoding:
        """The same without the positions at the end that no prompt uses."""
        length = max(1, int(self.mask.sum(dim=1).max())) if len(self) else 1
        return TextEncoding(self.embeds[:, :length], self.mask[:, :length], self.reports)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TextEncoding:
        """The same on another device; ``dtype`` applies to the features."""
        return TextEncoding(
            self.embeds.to(device=device, dtype=dtype), self.mask.to(device=device), self.reports
        )

    def save(self, path: Path, *, settings: TextSettings, fingerprint: str) -> None:
        """Write a safetensors file, atomically.

        Args:
            path: file to write.
            settings: settings the prompts were encoded with.
            fingerprint: :attr:`PromptEncoder.fingerprint` of the encoder that made it.
        """
        metadata = {"settings": json.dumps(settings.to_dict()), "fingerprint": fingerprint}
        tensors = {"embeds": self.embeds, "mask": self.mask}
        write_safetensors(path, tensors, metadata)

    @classmethod
    def load(
        cls, path: Path, *, settings: TextSettings, fingerprint: str | None = None
    ) -> TextEncoding:
        """Read a file of :meth:`save`.

        Args:
            path: file to read.
            settings: settings the reader needs; the file's must be equal.
            fingerprint: encoder the reader needs; ``None`` accepts any.

        Raises:
            TextEncodingError: no such file, a damaged one, or other settings or encoder.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise TextEncodingError(f"cannot read text features from {path}: {error}") from error
        if set(tensors) != {"embeds", "mask"} or not {"settings", "fingerprint"} <= set(metadata):
            raise TextEncodingError(f"{path} is not a file of text features")
        stored = TextSettings.from_dict(json.loads(metadata["settings"]))
        if stored != settings:
            different = [
                key for key, value in stored.to_dict().items() if settings.to_dict()[key] != value
            ]
            raise TextEncodingError(
                f"{path} was made with other text settings ({', '.join(different)} differ): "
                "encode the prompts again"
            )
        if fingerprint is not None and metadata["fingerprint"] != fingerprint:
            raise TextEncodingError(
                f"{path} was made by another text encoder "
                f"({metadata['fingerprint']}, needed {fingerprint}): encode the prompts again"
            )
        return cls(tensors["embeds"], tensors["mask"])
