"""Scores of an autoencoder of clips on concepts that its training never saw.

How near the frames come is not all: the motion that a clip shows must still be there after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sana_like.autoencoders.dc_ae_video import AutoencoderDCVideo
from sana_like.weights.files import write_json
from sana_like.weights.hub import resolve_folder
from sana_like_pipelines.media.sheet import contact_sheet
from sana_like_pipelines.pixels import to_pil
from sana_like_train.data.clip_items import ClipItem, drawn_item
from sana_like_train.data.clips import unit_range
from sana_like_train.data.motion import CLIP_FRAMES, CLIP_RATE
from sana_like_train.data.records import load_records
from sana_like_train.data.split import load_split
from sana_like_train.evaluate.motion_rules import recognise_motion
from sana_like_train.evaluate.quality import psnr, ssim
from sana_like_train.evaluate.report import provenance, save_png
from sana_like_train.evaluate.subset import spread

FIRST_FRAME_BAR, MOTION_BAR = 24.0, 0.9
SEED = 0
_SHEET_CLIPS, _SHEET_FRAMES = 6, 5


@torch.inference_mode()
def evaluate_video_autoencoder(
    model: str | Path,
    pack: str | Path,
    output: str | Path,
    limit: int | None = None,
    *,
    device: str = "cpu",
    split: str | Path = "emoji",
    frames: int = CLIP_FRAMES,
    side: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Score an autoencoder of clips on one clip of exact motion of every held-out picture.

    Args:
        model: embedded name, folder or hub id of an `AutoencoderDCVideo`.
        pack: the emoji pack of stills.
        output: folder for `video-autoencoder.json` and `.png` (originals over reconstructions).
        limit: score only so many clips, spread over the pictures; None scores all.
        device: where the model runs, in fp32.
        split: name or path of the split.
        frames, side: of the clips.
        progress: called with clips done and in all.

    Returns:
        What `video-autoencoder.json` holds: PSNR and SSIM of all frames, of first and of later
        ones, and the shares of clips and of their reconstructions whose motion is named rightly.
    """
    records = load_split(split).records(load_records(pack), "held_out", selected=True)
    if not records:
        raise ValueError(
            f"{pack} holds none of the split's held-out concepts; is it an emoji pack?"
        )
    items = [drawn_item(record, seed=SEED, epoch=0) for record in spread(records, limit)]
    folder = resolve_folder(model)
    autoencoder = AutoencoderDCVideo.from_pretrained(folder, dtype=torch.float32).to(device)
    decibels, similarities, named = [], [], []
    for done, item in enumerate(items, start=1):
        original = item.open(frames, CLIP_RATE, side)
        rebuilt = _rebuilt(autoencoder, original)
        decibels.append(psnr(rebuilt, unit_range(original)))
        similarities.append(ssim(rebuilt, unit_range(original)))
        assert item.plan is not None
        pixels = ((rebuilt + 1) * 127.5).round().to(torch.uint8)
        named.append([_shows(clip, item.plan.motion) for clip in (original, pixels)])
        if progress is not None:
            progress(done, len(items))
    report = {
        "model": str(model),
        "part": "clips of exact motion of held-out concepts",
        **provenance({"autoencoder": folder}, device),
        "frames": _means(torch.stack(decibels), torch.stack(similarities)),
        "motion": dict(zip(("true", "rebuilt"), np.mean(named, axis=0).round(4).tolist(),
                           strict=True)),
        "count": len(items),
    }  # fmt: skip
    report["reached"] = {
        "first_frame": report["frames"]["first"]["least_psnr"] >= FIRST_FRAME_BAR,
        "motion": report["motion"]["rebuilt"] >= MOTION_BAR * report["motion"]["true"],
    }
    written = Path(output)
    written.mkdir(parents=True, exist_ok=True)
    _save_sheet(autoencoder, spread(items, _SHEET_CLIPS), frames, side, written)
    write_json(written / "video-autoencoder.json", report)
    return report


def _rebuilt(autoencoder: AutoencoderDCVideo, frames: Tensor) -> Tensor:
    """uint8 `[T, 3, Y, X]` encoded and decoded: fp32 in [-1, 1] on the CPU."""
    clip = unit_range(frames).transpose(0, 1)[None].to(autoencoder.device)
    return autoencoder(clip).sample[0].transpose(0, 1).float().cpu().clamp(-1, 1)


def _shows(frames: Tensor, motion: str) -> bool:
    """Whether uint8 `[T, 3, Y, X]` is recognised as a motion."""
    return recognise_motion(frames.movedim(1, -1).contiguous().numpy()) == motion


def _means(decibels: Tensor, similarities: Tensor) -> dict[str, dict[str, float]]:
    """Scores `[clips, frames]` of all frames, of the first of each clip, and of the later ones."""
    parts = {"all": slice(None), "first": slice(0, 1), "later": slice(1, None)}
    return {
        name: {
            "psnr": round(decibels[:, part].mean().item(), 3),
            "ssim": round(similarities[:, part].mean().item(), 5),
            "least_psnr": round(decibels[:, part].min().item(), 3),
        }
        for name, part in parts.items()
    }


def _save_sheet(
    autoencoder: AutoencoderDCVideo, items: Sequence[ClipItem], frames: int, side: int, folder: Path
) -> None:
    pictures, texts = [], []
    for item in items:
        original = item.open(frames, CLIP_RATE, side)
        shown = spread(range(frames), _SHEET_FRAMES)
        for name, clip in (
            ("", unit_range(original)),
            ("rebuilt", _rebuilt(autoencoder, original)),
        ):
            pictures += to_pil(clip[list(shown)] / 2 + 0.5)
            texts += [name or item.captions[0].text] + [""] * (len(shown) - 1)
    sheet = contact_sheet(pictures, texts, columns=_SHEET_FRAMES, side=128)
    save_png(sheet, folder / "video-autoencoder.png")
