"""The committed prompt lists by which an emoji model is scored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sana_like_train.data.captions import emoji_prompt
from sana_like_train.data.records import Record
from sana_like_train.data.split import Split, read_split_file

SEEN_PROMPTS = 200


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """One prompt, the seed of its start noise, and the key of the picture it describes."""

    prompt: str
    key: str
    seed: int


@dataclass(frozen=True, slots=True)
class PromptList:
    """Prompts by part with the settings they are sampled with.

    Attributes:
        steps, guidance, height, width: arguments of the pipeline call.
        seen: pictures of the training part; composition: concepts seen in other styles only;
        unseen: concepts seen in no style.
    """

    steps: int
    guidance: float
    height: int
    width: int
    seen: tuple[EvalPrompt, ...]
    composition: tuple[EvalPrompt, ...]
    unseen: tuple[EvalPrompt, ...]

    def to_json(self) -> str:
        """Return the list as the text of its file, one prompt a line."""
        settings = {
            "steps": self.steps,
            "guidance": self.guidance,
            "height": self.height,
            "width": self.width,
        }
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in settings.items()]
        for part in ("seen", "composition", "unseen"):
            rows = ",\n".join(
                f"  {json.dumps([entry.prompt, entry.key, entry.seed], ensure_ascii=False)}"
                for entry in getattr(self, part)
            )
            lines.append(f" {json.dumps(part)}: [\n{rows}\n ]")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def make_prompt_list(
    records: Sequence[Record],
    split: Split,
    *,
    steps: int,
    guidance: float,
    size: int = 256,
    count: int = SEEN_PROMPTS,
) -> PromptList:
    """Choose `count` training pictures by a hash of their keys, and all of the other parts.

    Every prompt is `LABEL, STYLE`; seeds count up within each part.
    """

    def prompts(chosen: list[Record]) -> tuple[EvalPrompt, ...]:
        ordered = sorted(chosen, key=lambda record: record.key)
        return tuple(
            EvalPrompt(emoji_prompt(record.label, record.style), record.key, seed)
            for seed, record in enumerate(ordered)
        )

    train = split.records(records, "train")
    train.sort(key=lambda record: hashlib.blake2b(record.key.encode(), digest_size=8).digest())
    return PromptList(
        steps=steps,
        guidance=guidance,
        height=size,
        width=size,
        seen=prompts(train[:count]),
        composition=prompts(split.records(records, "composition")),
        unseen=prompts(split.records(records, "held_out")),
    )


def load_prompt_list(source: str | Path = "emoji_prompts") -> PromptList:
    """Load a committed list by name, or a file by path; raises `ValueError` if it is not one."""
    text = read_split_file(source)
    try:
        content = json.loads(text)
        parts = {
            part: tuple(EvalPrompt(str(row[0]), str(row[1]), int(row[2])) for row in content[part])
            for part in ("seen", "composition", "unseen")
        }
        return PromptList(
            steps=int(content["steps"]),
            guidance=float(content["guidance"]),
            height=int(content["height"]),
            width=int(content["width"]),
            **parts,
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{source} is not a prompt list: {error!r}") from error
