"""Scores of an autoencoder on concepts that its training never saw."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.weights.files import write_json
from sana_like.weights.hub import resolve_folder
from sana_like_pipelines.media.sheet import contact_sheet
from sana_like_pipelines.pixels import to_pil
from sana_like_train.data.records import WHITE, Colour, Record, load_records
from sana_like_train.data.split import load_split
from sana_like_train.evaluate.quality import psnr, ssim
from sana_like_train.evaluate.report import provenance, save_png
from sana_like_train.evaluate.subset import spread

PSNR_BAR, SSIM_BAR = 32.0, 0.95
_BATCH = 8
_SHEET_PAIRS = 32


@torch.inference_mode()
def reconstruct(autoencoder: Any, pictures: Tensor) -> Tensor:
    """Encode and decode `[B, 3, Y, X]` in [-1, 1]; returns the same shape, fp32, clamped.

    `autoencoder` has `encode(x).latent` and `decode(z).sample`, and parameters that say where and
    in what it runs.
    """
    parameter = next(autoencoder.parameters())
    latent = autoencoder.encode(pictures.to(parameter.device, parameter.dtype)).latent
    return autoencoder.decode(latent).sample.float().cpu().clamp(-1.0, 1.0)


def random_colour(key: str) -> Colour:
    """Return a colour that is a function of `key`: red, green, blue, uniform in [0, 1]."""
    digest = hashlib.blake2b(key.encode(), digest_size=3).digest()
    return (digest[0] / 255.0, digest[1] / 255.0, digest[2] / 255.0)


def reconstruction_scores(
    autoencoder: Any,
    records: Sequence[Record],
    *,
    background: Callable[[Record], Colour] = lambda _: WHITE,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return PSNR in dB and SSIM, `[len(records)]` each, of the records' reconstructions."""
    decibels, similarities = [], []
    for start in range(0, len(records), _BATCH):
        batch = records[start : start + _BATCH]
        pictures = torch.stack([record.open_picture(background(record)) for record in batch])
        rebuilt = reconstruct(autoencoder, pictures)
        decibels.append(psnr(rebuilt, pictures))
        similarities.append(ssim(rebuilt, pictures))
        if progress is not None:
            progress(min(start + _BATCH, len(records)), len(records))
    return torch.cat(decibels), torch.cat(similarities)


def evaluate_autoencoder(
    model: str | Path,
    pack: str | Path,
    output: str | Path,
    limit: int | None = None,
    *,
    device: str = "cpu",
    split: str | Path = "emoji",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Score an autoencoder on the held-out concepts of an emoji pack, in every style.

    Args:
        model: embedded name, folder or hub id of an `AutoencoderDC`.
        pack: the emoji pack.
        output: folder for `autoencoder.json` and `autoencoder.png` (originals over
            reconstructions).
        limit: score only so many pictures, spread over the held-out ones; None scores all.
        device: where the model runs, in fp32.
        split: name or path of the split.
        progress: called with pictures done and in all, once for white and once for colours.

    Returns:
        What `autoencoder.json` holds: on white and on random colours the mean per-picture PSNR and
        SSIM, over all styles and concepts, by style, and over the product's selection.
    """
    records = load_records(pack)
    parts = load_split(split)
    held_out = parts.records(records, "held_out", selected=False)
    if not held_out:
        raise ValueError(
            f"{pack} holds none of the split's held-out concepts; is it an emoji pack?"
        )
    held_out = spread(held_out, limit)
    folder = resolve_folder(model)
    autoencoder = AutoencoderDC.from_pretrained(folder).to(device)
    selected = torch.tensor([parts.is_selected(record) for record in held_out])
    report: dict[str, Any] = {
        "model": str(model),
        "part": "held-out concepts",
        **provenance({"autoencoder": folder}, device),
    }
    backgrounds: dict[str, Callable[[Record], Colour]] = {
        "white": lambda _: WHITE,
        "random_colour": lambda record: random_colour(record.key),
    }
    for name, background in backgrounds.items():
        decibels, similarities = reconstruction_scores(
            autoencoder, held_out, background=background, progress=progress
        )
        masks = {"all": torch.ones_like(selected), "selected": selected} | {
            style: torch.tensor([record.style == style for record in held_out])
            for style in sorted({record.style for record in held_out})
        }
        report[name] = {
            group: _means(decibels[mask], similarities[mask])
            for group, mask in masks.items()
            if mask.any()
        }
    report["reached"] = {
        name: all(
            scores["psnr"] >= PSNR_BAR and scores["ssim"] >= SSIM_BAR
            for group, scores in report[name].items()
            if group in ("all", "selected")
        )
        for name in backgrounds
    }
    folder_out = Path(output)
    folder_out.mkdir(parents=True, exist_ok=True)
    _save_pairs(autoencoder, spread(held_out, _SHEET_PAIRS), folder_out / "autoencoder.png")
    write_json(folder_out / "autoencoder.json", report)
    return report


def _means(decibels: Tensor, similarities: Tensor) -> dict[str, float]:
    return {
        "psnr": round(decibels.mean().item(), 3),
        "ssim": round(similarities.mean().item(), 5),
        "count": len(decibels),
    }


def _save_pairs(autoencoder: Any, records: Sequence[Record], path: Path) -> None:
    pictures, texts = [], []
    for record in records:
        original = record.open_picture()[None]
        rebuilt = reconstruct(autoencoder, original)
        decibel = psnr(rebuilt, original).item()
        pictures += to_pil(torch.cat([original, rebuilt]) / 2 + 0.5)
        texts += [f"{record.label}, {record.style}", f"{decibel:.1f} dB"]
    save_png(contact_sheet(pictures, texts, columns=8, side=128), path)
