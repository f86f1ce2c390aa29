"""Does the emoji model draw what it was asked for? Judged by neighbours among real pictures.

Three lists of committed prompts: pictures of the training part, concepts seen in other styles only
(composition), and concepts seen in no style. Every generated picture is compared with all pictures
of the pack. What the autoencoder alone makes of the true pictures is the ceiling, what the
generated ones score against other prompts the floor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from sana_like.weights.files import write_json
from sana_like.weights.hub import resolve_folder
from sana_like_pipelines import SanaPipeline
from sana_like_pipelines.media.sheet import contact_sheet
from sana_like_pipelines.pixels import to_pil
from sana_like_train.data.prompts import EvalPrompt, PromptList, load_prompt_list
from sana_like_train.data.records import Record, composite, load_records
from sana_like_train.evaluate.autoencoder import reconstruct
from sana_like_train.evaluate.features import FeatureExtractor, cached_record_features
from sana_like_train.evaluate.neighbours import (
    CONCEPT_NEIGHBOURS,
    NeighbourScores,
    nearest,
    score_neighbours,
)
from sana_like_train.evaluate.report import model_sources, save_png
from sana_like_train.evaluate.subset import spread

PARTS = ("seen", "composition", "unseen")
SEEN_BAR = 0.75  # of the reconstructions' concept score
STYLE_BAR = 0.90
COMPOSITION_BAR = 0.40  # of the reconstructions' concept score
GROUP_BAR = 0.44
_SHEET_PICTURES = 64
# Of each part, what the README shows: (count, mark behind the prompt).
_SHOWN = {"seen": (32, ""), "composition": (8, " *"), "unseen": (8, " **")}

Progress = Callable[[int, int], None]


def evaluate_emoji(
    model: str | Path,
    pack: str | Path,
    output: str | Path,
    limit: int | None = None,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    batch_size: int = 16,
    prompts: str | Path = "emoji_prompts",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Generate the pictures of the committed prompt lists and score them.

    Pictures already in `output` from the same weights and settings are not made again, so a
    stopped evaluation goes on where it was.

    Args:
        model: embedded name, folder or hub id of a `SanaPipeline`.
        pack: the emoji pack that the pictures are compared with.
        output: folder for `emoji.json`, a sheet `emoji-PART.png` for each part, an overview
            `emoji-sheet.png`, and the pictures.
        limit: use only so many prompts of each part, spread over it; None uses all.
        device, dtype: where and in what the pipeline runs.
        batch_size: pictures generated at once.
        prompts: name or path of the prompt list.
        progress: called with pictures done and in all.

    Returns:
        What `emoji.json` holds: for each part the scores of the generated pictures and of the
        reconstructions, their ratio, and which bars are reached.
    """
    records = load_records(pack)
    by_key = {record.key: record for record in records}
    lists = load_prompt_list(prompts)
    chosen = {part: spread(getattr(lists, part), limit) for part in PARTS}
    missing = [one.key for part in PARTS for one in chosen[part] if one.key not in by_key]
    if missing:
        raise ValueError(
            f"{pack} lacks {len(missing)} pictures that the prompts describe, {missing[0]!r} among "
            "them; build the pack with `sana-like train data emoji`"
        )
    extractor = FeatureExtractor()
    folder = resolve_folder(model)
    pipeline: Any = SanaPipeline.from_pretrained(folder, dtype=dtype, device=device)
    pipeline.set_progress_bar_config(disable=True)
    written = Path(output)
    settings = {
        "steps": lists.steps,
        "guidance": lists.guidance,
        "height": lists.height,
        "width": lists.width,
        "dtype": str(dtype).removeprefix("torch."),
    }
    report = {"model": str(model), **model_sources(folder, device), "settings": settings}
    pictures = _generate(pipeline, lists, chosen, written, report, batch_size, progress)

    judge = _Judge(records, extractor.to(device), device)
    for part in PARTS:
        wanted = [by_key[one.key] for one in chosen[part]]
        report[part] = _part_report(
            judge.score(pictures[part], wanted),
            judge.score(_reconstructions(pipeline.vae, wanted), wanted),
        )
        shown = spread(range(len(wanted)), _SHEET_PICTURES)
        sheet = contact_sheet(
            [pictures[part][index] for index in shown],
            [chosen[part][index].prompt for index in shown],
            columns=8,
            side=128,
        )
        save_png(sheet, written / f"emoji-{part}.png")
    save_png(_overview(pictures, chosen), written / "emoji-sheet.png")
    report["reached"] = _reached(report)
    write_json(written / "emoji.json", report)
    return report


def _overview(
    pictures: dict[str, list[Image.Image]], chosen: dict[str, list[EvalPrompt]]
) -> Image.Image:
    """A sheet of pictures spread over the lists, not picked; `*` marks a held-out style of a
    concept, `**` a held-out concept.
    """
    images, labels = [], []
    for part, (count, mark) in _SHOWN.items():
        for index in spread(range(len(chosen[part])), count):
            images.append(pictures[part][index])
            labels.append(chosen[part][index].prompt + mark)
    return contact_sheet(images, labels, columns=8, side=128)


def _generate(
    pipeline: Any,
    lists: PromptList,
    chosen: dict[str, list[EvalPrompt]],
    output: Path,
    report: dict[str, Any],
    batch_size: int,
    progress: Progress | None,
) -> dict[str, list[Image.Image]]:
    """Return the pictures of every part, made or taken from an earlier run's files."""
    identity = json.dumps([report["weights_sha256"], report["settings"]], sort_keys=True)
    folder = output / f"pictures-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [one for part in PARTS for one in chosen[part]]
    paths = {one: folder / f"{one.key}-{one.seed}.png" for one in prompts}
    todo = [one for one in prompts if not paths[one].is_file()]
    for start in range(0, len(todo), batch_size):
        batch = todo[start : start + batch_size]
        made = pipeline(
            [one.prompt for one in batch],
            height=lists.height,
            width=lists.width,
            num_inference_steps=lists.steps,
            guidance_scale=lists.guidance,
            generator=[one.seed for one in batch],
        ).images
        for one, picture in zip(batch, made, strict=True):
            save_png(picture, paths[one])
        if progress is not None:
            progress(len(prompts) - len(todo) + start + len(batch), len(prompts))
    return {part: [_read(paths[one]) for one in chosen[part]] for part in PARTS}


def _read(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


class _Judge:
    """Scores pictures by their neighbours in the pack, whose features it holds."""

    def __init__(self, records: Sequence[Record], extractor: FeatureExtractor, device: str) -> None:
        self.records = records
        self.extractor = extractor
        self.device = device
        self.features = cached_record_features(records, extractor, device)

    def score(self, pictures: Iterable[Image.Image], wanted: Sequence[Record]) -> NeighbourScores:
        rows = [self.extractor(composite(one)[None].to(self.device)) for one in pictures]
        found = nearest(torch.cat(rows).cpu(), self.features, CONCEPT_NEIGHBOURS)
        return score_neighbours(found, self.records, wanted)


def _reconstructions(autoencoder: Any, records: Sequence[Record]) -> Iterator[Image.Image]:
    """What the autoencoder makes of the records' pictures, in 8 bits as generated ones are."""
    for record in records:
        rebuilt = reconstruct(autoencoder, record.open_picture()[None])
        yield from to_pil(rebuilt / 2 + 0.5)


def _part_report(generated: NeighbourScores, rebuilt: NeighbourScores) -> dict[str, Any]:
    ceiling = rebuilt.concept_top5
    return {
        "generated": generated.as_dict(),
        "reconstructions": rebuilt.as_dict(),
        "concept_top5_ratio": round(generated.concept_top5 / ceiling, 4) if ceiling else None,
    }


def _reached(report: dict[str, Any]) -> dict[str, bool]:
    seen_ratio = report["seen"]["concept_top5_ratio"]
    composition_ratio = report["composition"]["concept_top5_ratio"]
    return {
        "seen_concept": seen_ratio is not None and seen_ratio >= SEEN_BAR,
        "seen_style": report["seen"]["generated"]["style_top1"] >= STYLE_BAR,
        "composition_concept": composition_ratio is not None
        and composition_ratio >= COMPOSITION_BAR,
        "unseen_group": report["unseen"]["generated"]["group_top1"] >= GROUP_BAR,
    }
