"""What a set of weights is, told from headers alone: no tensor is read, no model is built."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sana_like.weights.architecture import guess_architecture, sized_architecture
from sana_like.weights.errors import WeightsError
from sana_like.weights.files import read_json
from sana_like.weights.header import FileHeader, refuse_pickle_name
from sana_like.weights.hub import resolve_folder
from sana_like.weights.keymaps import find_map
from sana_like.weights.lora_file import LORA_FILE, PEFT_FILE
from sana_like.weights.strict import WEIGHTS_STEM, WeightsReader, find_weights

_HASH_BLOCK = 2**20
_DOWN_FACTOR = re.compile(r"\.lora(?:_A|_down|\.down)\.(?:[^.]+\.)?weight$")


@dataclass(frozen=True)
class FileSummary:
    """One file: its name, size in bytes, and SHA-256 in hex if it was asked for."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class WeightsSummary:
    """What `inspect_weights` found.

    Attributes:
        path: the file or index.
        kind: `model`, `adapter` or `unknown`.
        layout: `diffusers`, `NVlabs` (needs conversion), or `unknown`.
        class_name: of the model, guessed from the keys.
        config_class: what the `config.json` beside it says.
        presets: published shapes of that class and size.
        num_parameters: elements of all tensors, batch-norm statistics not counted.
        num_tensors: tensors, scales of int8 storage not counted.
        dtypes: stored type to number of elements.
        num_bytes: size of all files.
        files: name, size and checksum of each.
        ranks: of an adapter: rank to number of layers.
        metadata: of the first file's header.
    """

    path: str
    kind: str
    layout: str
    class_name: str | None
    config_class: str | None
    presets: tuple[str, ...]
    num_parameters: int
    num_tensors: int
    dtypes: dict[str, int]
    num_bytes: int
    files: tuple[FileSummary, ...]
    ranks: dict[int, int] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """A few lines for people."""
        what = self.class_name or ("LoRA adapter" if self.kind == "adapter" else "unknown model")
        shapes = f" ({', '.join(self.presets)})" if self.presets else ""
        lines = [self.path, f"  {what}{shapes}, {self.layout} layout"]
        if self.config_class not in (None, self.class_name):
            lines.append(f"  its config.json is that of {self.config_class}")
        if self.ranks:
            ranks = ", ".join(f"rank {rank} in {n} layers" for rank, n in self.ranks.items())
            lines.append(f"  {ranks}")
        dtypes = ", ".join(f"{name} {count:,}" for name, count in self.dtypes.items())
        lines.append(
            f"  {self.num_parameters:,} parameters in {self.num_tensors} tensors: {dtypes}"
        )
        lines += [f"  {file.name}  {file.size:,} bytes  {file.sha256 or ''}" for file in self.files]
        return "\n".join(line.rstrip() for line in lines)


def inspect_weights(
    name_or_path: str | Path, *, variant: str | None = None, checksums: bool = True
) -> list[WeightsSummary]:
    """Describe weights without reading a tensor.

    Args:
        name_or_path: a safetensors file, an index, a model folder, a pipeline folder (each model
            in it is described), or an embedded name.
        variant: file variant, such as `fp16`.
        checksums: whether to compute SHA-256, which reads every byte.

    Returns:
        One summary per set of weights.

    Raises:
        WeightsError: broken files, a pickle, or no weights at all.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix:
        refuse_pickle_name(path)
    if path.is_file() or path.suffix in (".safetensors", ".json"):
        return [_summary(path, checksums)]
    folder = resolve_folder(name_or_path, local_files_only=True)
    found = [path for place in _places(folder) for path in _weights_of(place, variant)]
    if not found:
        raise WeightsError(f"{folder}: holds no safetensors, neither directly nor one level down.")
    return [_summary(path, checksums) for path in found]


def _places(folder: Path) -> list[Path]:
    return [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]


def _weights_of(folder: Path, variant: str | None) -> list[Path]:
    """The sets of weights in one folder: its model's, its adapters', or any single files."""
    names = {path.name for path in folder.iterdir()}
    if any(name.startswith(f"{WEIGHTS_STEM}.") and ".safetensors" in name for name in names):
        return [find_weights(folder, variant)]
    adapters = [folder / name for name in (LORA_FILE, PEFT_FILE) if name in names]
    indices = sorted(path for path in folder.glob("*.safetensors.index*.json"))
    return adapters or indices or sorted(folder.glob("*.safetensors"))


def _summary(path: Path, checksums: bool) -> WeightsSummary:
    reader = WeightsReader.open(path)
    shapes = {key: info.shape for key, info in reader.tensors.items()}
    table = find_map(shapes)
    if table is None:
        guess = guess_architecture(shapes)
    else:
        used = {key: shape for key, shape in shapes.items() if table.translate(key) != ()}
        guess = sized_architecture(table.class_name, used)
    ranks = Counter(shape[0] for key, shape in shapes.items() if _DOWN_FACTOR.search(key) and shape)
    layout = "NVlabs" if table else "diffusers" if guess.class_name or ranks else "unknown"
    kind = "adapter" if ranks else "model" if guess.class_name else "unknown"
    return WeightsSummary(
        path=str(path),
        kind=kind,
        layout=layout,
        class_name=guess.class_name,
        config_class=_config_class(path.parent),
        presets=guess.presets,
        num_parameters=guess.num_parameters,
        num_tensors=len(shapes),
        dtypes=_dtypes(reader.files),
        num_bytes=sum(file.size for file in reader.files),
        files=tuple(
            FileSummary(file.path.name, file.size, sha256(file.path) if checksums else None)
            for file in reader.files
        ),
        ranks=dict(sorted(ranks.items())),
        metadata=dict(reader.files[0].metadata),
    )


def sha256(path: Path) -> str:
    """SHA-256 of a file in hex, read block by block."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(_HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _config_class(folder: Path) -> str | None:
    path = folder / "config.json"
    if not path.is_file():
        return None
    name = read_json(path).get("_class_name")
    return name if isinstance(name, str) else None


def _dtypes(files: tuple[FileHeader, ...]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for file in files:
        for info in file.tensors.values():
            counts[str(info.dtype).removeprefix("torch.")] += info.nbytes // info.dtype.itemsize
    return dict(counts.most_common())
