"""What a stream carries from one chunk to the next.

A chunk is a few latent frames: inside it every frame reads every other, across chunks a frame
reads only what came before (block-causal). All that later chunks need to know of the past is, for
each block, a few sums over the tokens so far and the last frame that the temporal convolution saw.
Their size does not depend on how much has passed (SANA-Video, arXiv 2509.24695, section 3.3).

States are values: a forward pass gives a new one and leaves the old one as it was. So a pass that
shall leave no trace is one whose new state is dropped, and a stream forks by going on twice from
one state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from sana_like.weights.errors import WeightsError
from sana_like.weights.files import parse_json_object
from sana_like.weights.strict import WeightsReader
from sana_like.weights.writer import write_safetensors

FORMAT_VERSION = 1
_METADATA = "sana_like.state"
_ONLY_PART = "state"

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class BlockState:
    """What one block carries on.

    Attributes:
        mixer: of the token mixer, by name; for ReLU linear attention `key_value [B, H, D, D]` and
            `key_sum [B, H, D]`, fp32.
        feed_forward: of the feed-forward; for `GLUMBConvTemp` `tail [B, 1, Y*X, C]`.
    """

    mixer: Tensors
    feed_forward: Tensors


@dataclass(frozen=True)
class State:
    """What a model carries on; made by `model.new_state`, then by each `forward`.

    Attributes:
        blocks: one for each block.
        frames: latent frames that have passed; the next chunk's positions begin there.
        grid: height and width of the tokens of a frame.
    """

    blocks: tuple[BlockState, ...]
    frames: int
    grid: tuple[int, int]

    def __len__(self) -> int:
        """Number of rows B."""
        return len(next(iter(self.tensors().values())))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; for linear mixers the same from the first chunk to the last."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def clone(self) -> State:
        """The same state in memory of its own, cut off from the autograd graph."""
        return self._map(lambda tensor: tensor.detach().clone())

    def detach(self) -> State:
        """The same state, through which no gradient flows back."""
        return self._map(lambda tensor: tensor.detach())

    def to(self, device: torch.device | str) -> State:
        """Moved to a device; dtypes stay."""
        return self._map(lambda tensor: tensor.to(device))

    def rows(self, index: slice | Sequence[int] | Tensor) -> State:
        """The chosen rows, as a batch of their own."""
        return self._map(lambda tensor: tensor[index])

    def repeat(self, times: int) -> State:
        """Each row `times` times in a row: one past with several continuations."""
        return self._map(lambda tensor: tensor.repeat_interleave(times, dim=0))

    @staticmethod
    def cat(states: Sequence[State]) -> State:
        """Rows of all states, one after the other.

        Raises:
            ValueError: no state, or states of different models, sizes or times.
        """
        kinds = {
            (state.frames, state.grid, tuple((k, t.shape[1:]) for k, t in state.tensors().items()))
            for state in states
        }
        if len(kinds) != 1:
            raise ValueError(
                f"State.cat needs states of one model, frame size and time; got {len(states)} "
                f"states of {len(kinds)} kinds"
            )
        parts = [state.tensors() for state in states]
        joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        return State.from_tensors(joined, states[0].settings())

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, such as `blocks.0.mixer.key_sum`."""
        return {
            f"blocks.{index}.{part}.{name}": tensor
            for index, block in enumerate(self.blocks)
            for part, tensors in (("mixer", block.mixer), ("feed_forward", block.feed_forward))
            for name, tensor in tensors.items()
        }

    def settings(self) -> dict[str, Any]:
        """What is not a tensor, as JSON values."""
        return {"frames": self.frames, "grid": list(self.grid), "blocks": len(self.blocks)}

    @classmethod
    def from_tensors(cls, tensors: Tensors, settings: Mapping[str, Any]) -> Self:
        """Inverse of `tensors` and `settings`.

        Raises:
            ValueError: they do not belong together.
        """
        try:
            count, frames = int(settings["blocks"]), int(settings["frames"])
            height, width = (int(side) for side in settings["grid"])
            parts: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = [
                ({}, {}) for _ in range(count)
            ]
            for key, tensor in tensors.items():
                _, index, part, name = key.split(".")
                parts[int(index)][("mixer", "feed_forward").index(part)][name] = tensor
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"these are not the tensors of a state: {error}") from error
        if frames < 0 or min(height, width, count) < 1:
            raise ValueError(f"these are not the settings of a state: {dict(settings)}")
        return cls(tuple(BlockState(*part) for part in parts), frames, (height, width))

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, from which `load` goes on in any process, bit for bit."""
        save_parts(path, {_ONLY_PART: self})

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> State:
        """Read what `save` wrote.

        Raises:
            WeightsError: the file is broken or holds something else.
        """
        return load_parts(path, {_ONLY_PART: cls}, device)[0][_ONLY_PART]

    def _map(self, change: Callable[[Tensor], Tensor]) -> State:
        changed = {key: change(tensor) for key, tensor in self.tensors().items()}
        return State.from_tensors(changed, self.settings())


def chunk_spans(chunks: Sequence[int], step: int = 1) -> Iterator[slice]:
    """Where each chunk lies: `(2, 3)` with `step` tokens a frame is `[0, 2*step), [2*step, ...)`.

    Args:
        chunks: frames of each chunk.
        step: length of a frame along the axis that is cut.
    """
    start = 0
    for frames in chunks:
        yield slice(start * step, (start + frames) * step)
        start += frames


class Part(Protocol):
    """Something that can be saved with a stream: its tensors and its settings."""

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""

    def settings(self) -> dict[str, Any]:
        """What is not a tensor, as JSON values."""

    @classmethod
    def from_tensors(cls, tensors: Tensors, settings: Mapping[str, Any]) -> Any:
        """Inverse of both; raises ValueError if they do not belong together."""


def save_parts(
    path: str | Path, parts: Mapping[str, Part], extra: Mapping[str, Any] | None = None
) -> None:
    """Write several parts of a stream into one safetensors file, whole or not at all.

    Args:
        path: of the file; its folder is made if absent.
        parts: by name without dots, e.g. the transformer's state and the decoder's cache.
        extra: JSON values that go with them, e.g. prompt, seed and frame rate.
    """
    record = {
        "version": FORMAT_VERSION,
        "parts": {name: part.settings() for name, part in parts.items()},
        "extra": dict(extra or {}),
    }
    tensors = {
        # Rows of one batch share memory, which a file cannot.
        f"{name}.{key}": tensor.detach().clone()
        for name, part in parts.items()
        for key, tensor in part.tensors().items()
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, tensors, {_METADATA: json.dumps(record, allow_nan=False)})


def load_parts(
    path: str | Path, kinds: Mapping[str, type[Any]], device: torch.device | str = "cpu"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what `save_parts` wrote.

    Args:
        path: of the file.
        kinds: class of each part, by name.
        device: where the tensors go.

    Returns:
        The parts by name, and `extra`.

    Raises:
        WeightsError: the file is broken, of another version, or has other parts.
    """
    reader = WeightsReader.open(Path(path))
    text = reader.files[0].metadata.get(_METADATA)
    if text is None:
        raise WeightsError(f"{path}: holds no state of a stream.")
    record = parse_json_object(text.encode(), f"{path} ({_METADATA})")
    settings = record.get("parts")
    if record.get("version") != FORMAT_VERSION or not isinstance(settings, dict):
        raise WeightsError(
            f"{path}: a state of format {record.get('version')!r}; this version reads "
            f"{FORMAT_VERSION}."
        )
    if settings.keys() != kinds.keys():
        raise WeightsError(
            f"{path}: holds {sorted(settings)}; expected {sorted(kinds)}. It was saved by another "
            "kind of stream."
        )
    tensors: dict[str, dict[str, Tensor]] = {name: {} for name in kinds}
    for key, tensor in reader.items():
        name, _, rest = key.partition(".")
        if name not in tensors:
            raise WeightsError(f"{path}: the tensor {key!r} belongs to no part.")
        tensors[name][rest] = tensor.to(device)
    try:
        parts = {
            name: kind.from_tensors(tensors[name], settings[name]) for name, kind in kinds.items()
        }
    except ValueError as error:
        raise WeightsError(f"{path}: {error}") from error
    return parts, dict(record.get("extra") or {})
