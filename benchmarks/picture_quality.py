"""What fast ways of making pictures change in them: fixed prompts and seeds, PSNR to the plain way.

    python benchmarks/picture_quality.py cache           # first-block cache, a row per threshold
    python benchmarks/picture_quality.py quantization    # 8-bit weights and activations

Prints a table in Markdown, then one JSON object as the last line. Quality only: nothing is timed.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

PROMPTS = (
    "a red apple, 3d",
    "a fox, flat",
    "a house in snow, 3d",
    "a yellow taxi, 3d",
    "a smiling face with sunglasses, flat",
    "a slice of pizza, 3d",
    "a blue whale, flat",
    "a potted plant, flat",
)
FIRST_SEED = 100
THRESHOLDS = (0.02, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3)


class Pictures:
    """Makes the fixed pictures with a pipeline.

    Args:
        model: an embedded name, a folder or a hub id.
        dtype: of all weights.
        count: pictures, one for each of the first prompts.
        steps: sampling steps.
    """

    def __init__(self, model: str, dtype: torch.dtype, count: int, steps: int) -> None:
        from sana_like_pipelines import SanaPipeline

        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.pipe = SanaPipeline.from_pretrained(model, dtype=dtype, device=device)
        self.pipe.set_progress_bar_config(disable=True)
        self.count, self.steps = count, steps

    def make(self, **settings: Any) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """Pictures `[B, Y, X, 3]` in [0, 1], and their recipes."""
        output = self.pipe(
            list(PROMPTS[: self.count]),
            generator=[FIRST_SEED + i for i in range(self.count)],
            num_inference_steps=self.steps,
            output_type="np",
            **settings,
        )
        return output.images, output.recipe


def psnr(pictures: np.ndarray, plain: np.ndarray) -> list[float]:
    """Peak signal-to-noise ratio in dB of each picture `[B, Y, X, 3]` in [0, 1], at most 100."""
    errors = ((pictures.clip(0, 1) - plain.clip(0, 1)) ** 2).mean(axis=(1, 2, 3))
    return [-10 * math.log10(max(float(error), 1e-10)) for error in errors]


def cache_rows(pictures: Pictures, thresholds: Sequence[float]) -> list[dict[str, Any]]:
    """One row for each threshold of the first-block cache."""
    plain, _ = pictures.make()
    rows = []
    for threshold in thresholds:
        cached, recipes = pictures.make(first_block_cache=threshold)
        records = [recipe["first_block_cache"] for recipe in recipes]
        run = sum(record["blocks_run"] for record in records)
        whole = sum(record["blocks_in_all"] for record in records)
        decibels = psnr(cached, plain)
        rows.append(
            {
                "threshold": threshold,
                "share of block evaluations": round(run / whole, 3),
                "fewer by": round(whole / run, 2),
                "mean PSNR, dB": round(float(np.mean(decibels)), 1),
                "lowest PSNR, dB": round(min(decibels), 1),
            }
        )
    return rows


def quantization_rows(pictures: Pictures) -> list[dict[str, Any]]:
    """One row for each scheme of quantisation, against the same weights unquantised.

    Where the device has no products of float8, `fp8` is emulated: weights as in `fp8-weights`, and
    activations rounded alike before products in the model's dtype.
    """
    from sana_like.weights.quantize import SCHEMES, quantize, unusable

    plain, _ = pictures.make()
    whole = pictures.pipe.transformer
    rows = []
    for scheme in SCHEMES:
        model = copy.deepcopy(whole)
        emulated = scheme in unusable(whole.device)
        report = quantize(model, "fp8-weights" if emulated else scheme)
        if emulated:
            for name in report.quantized:
                model.get_submodule(name).register_forward_pre_hook(round_to_float8)
        pictures.pipe.transformer = model
        decibels = psnr(pictures.make()[0], plain)
        rows.append(
            {
                "scheme": scheme + (", emulated" if emulated else ""),
                "bytes of the transformer": round(report.bytes_after / report.bytes_before, 3),
                "error of the first block": "-" if emulated else round(report.error, 4),
                "mean PSNR, dB": round(float(np.mean(decibels)), 1),
                "lowest PSNR, dB": round(min(decibels), 1),
            }
        )
    pictures.pipe.transformer = whole
    return rows


def round_to_float8(layer: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:  # noqa: ARG001
    """Activations `[..., C]` as float8 E4M3 holds them with a scale per token."""
    (x,) = inputs
    largest = torch.finfo(torch.float8_e4m3fn).max
    scale = x.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / largest
    return (((x.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype),)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table in Markdown."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cache", "quantization"))
    parser.add_argument("--model", default="emoji")
    parser.add_argument("--dtype", help="float32 for the cache, bfloat16 for quantization")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--count", type=int, default=len(PROMPTS), help="pictures, at most 8")
    parser.add_argument("--thresholds", type=float, nargs="+", default=THRESHOLDS)
    given = parser.parse_args()
    name = given.dtype or {"cache": "float32", "quantization": "bfloat16"}[given.what]
    pictures = Pictures(given.model, getattr(torch, name), given.count, given.steps)
    if given.what == "cache":
        rows = cache_rows(pictures, given.thresholds)
    else:
        rows = quantization_rows(pictures)
    print(table(rows))
    facts = {
        "benchmark": f"picture_quality {given.what}",
        "model": given.model,
        "dtype": name,
        "steps": given.steps,
        "pictures": given.count,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "rows": rows,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
