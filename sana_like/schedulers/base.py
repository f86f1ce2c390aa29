"""What all samplers share: position in the schedule, configuration, saving."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from diffusers.configuration_utils import ConfigMixin
from diffusers.schedulers.scheduling_utils import SchedulerMixin
from torch import Tensor

from sana_like.schedulers.published import FORMATS, PublishedFormat, guess_format, read_settings
from sana_like.weights.files import write_json


class Sampler(SchedulerMixin, ConfigMixin):
    """Base of the schedulers: counts steps, reads and writes diffusers' configurations.

    An instance serves one run at a time; `fresh()` gives another run its own.

    Attributes:
        order: network evaluations per step.
        published_class_name: diffusers' class that a saved configuration names.
        init_noise_sigma: always 1; start from unit normal noise.
        num_inference_steps: steps of the present run, `None` before `set_timesteps`.
        timesteps: what the network is told, one per evaluation.
    """

    config_name: Any = "scheduler_config.json"  # the bases declare it differently
    order = 1
    published_class_name: ClassVar[str]
    _compatibles: list[str] = []  # noqa: RUF012 - declared so by diffusers
    _extension_keys: ClassVar[dict[str, Any]] = {}

    init_noise_sigma = 1.0
    num_inference_steps: int | None
    timesteps: Tensor
    _step_index: int | None
    _begin_index: int | None

    @classmethod
    def _format(cls) -> PublishedFormat:
        return next(fmt for fmt in FORMATS if fmt.name == cls.published_class_name)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | None = None,
        return_unused_kwargs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Build from a configuration of this sampler, of its diffusers counterpart, or of another.

        From another flow sampler only what they share is taken: the shift, the number of training
        timesteps and, where both have it, `truncate_timesteps`.

        Args:
            config: dictionary, as in `scheduler_config.json` or `scheduler.config`.
            return_unused_kwargs: also return the keyword arguments that were not used.
            **kwargs: settings that replace those of `config`.

        Raises:
            ValueError: a key or value that would not be honoured, named in the message.
        """
        if not isinstance(config, Mapping):
            raise ValueError(
                f"from_config wants a dictionary, not {type(config).__name__}; use "
                "from_pretrained for a folder or a hub id"
            )
        own, source = cls._format(), guess_format(config, cls._format())
        if source is own:
            settings = read_settings(config, own, cls._extension_keys)
        else:
            settings = cls._translate(config, source)
        overrides = {key: kwargs.pop(key) for key in list(kwargs) if key in cls._setting_names()}
        if kwargs and not return_unused_kwargs:
            raise ValueError(f"{cls.__name__} has no setting {', '.join(kwargs)}")
        sampler = cls(**{**settings, **overrides})
        return (sampler, kwargs) if return_unused_kwargs else sampler

    @classmethod
    def _translate(cls, config: Mapping[str, Any], source: PublishedFormat) -> dict[str, Any]:
        own = cls._format()
        if not (own.shift_key and source.shift_key):
            raise ValueError(
                f"{cls.__name__} cannot take the configuration of {source.name}: one samples a "
                "rectified flow, the other a TrigFlow consistency model"
            )
        known = {"sigma_grid": None, "truncate_timesteps": False}
        given = read_settings(config, source, known)
        names = {
            "num_train_timesteps": "num_train_timesteps",
            source.shift_key: own.shift_key,
            "truncate_timesteps": "truncate_timesteps",
        }
        return {
            names[key]: value
            for key, value in given.items()
            if key in names and names[key] in cls._setting_names()
        }

    @classmethod
    def _setting_names(cls) -> list[str]:
        return [*cls._format().defaults, *cls._extension_keys]

    def fresh(self) -> Self:
        """A new sampler with the same settings and no run in progress."""
        return type(self)(**{key: self.config[key] for key in self._setting_names()})

    def published_config(self) -> dict[str, Any]:
        """The configuration as diffusers reads it.

        It names diffusers' class. Settings of ours that differ from their default are kept, for
        our own loader; diffusers reports and ignores them.
        """
        import diffusers

        kept = {
            key: self.config[key]
            for key in self._setting_names()
            if key not in self._extension_keys or self.config[key] != self._extension_keys[key]
        }
        return {
            "_class_name": self.published_class_name,
            "_diffusers_version": diffusers.__version__,
            **kept,
        }

    def to_json_file(self, json_file_path: str | os.PathLike[str]) -> None:
        """Write `published_config()`; the file appears whole or not at all."""
        write_json(Path(json_file_path), self.published_config())

    @property
    def step_index(self) -> int | None:
        """Index of the next evaluation; `None` before the first."""
        return self._step_index

    @property
    def begin_index(self) -> int | None:
        """Index of the first evaluation where `set_begin_index` was called."""
        return self._begin_index

    def set_begin_index(self, begin_index: int = 0) -> None:
        """Start the run at `timesteps[begin_index]`.

        Raises:
            ValueError: an index outside the schedule, or in the middle of a step.
        """
        if not 0 <= begin_index < self._num_evaluations() or begin_index % self.order:
            raise ValueError(
                f"begin_index is {begin_index}; it must be a multiple of {self.order} from 0 to "
                f"{self._num_evaluations() - 1}"
            )
        self._begin_index = begin_index

    def index_for_timestep(self, timestep: float | Tensor) -> int:
        """Index of a timestep in the schedule; of equal ones the one that begins a step.

        Raises:
            ValueError: the timestep is not in the schedule.
        """
        matches = (self.timesteps.cpu() == float(timestep)).nonzero().flatten().tolist()
        if not matches:
            raise ValueError(
                f"timestep {float(timestep)} is not in the schedule; pass an element of "
                "scheduler.timesteps"
            )
        return int(matches[min(len(matches), self.order) - 1])

    def scale_model_input(self, sample: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG002 - diffusers' signature
        """The sample unchanged: these samplers do not scale the network's input."""
        return sample

    def __len__(self) -> int:
        return int(self.config["num_train_timesteps"])

    def _num_evaluations(self) -> int:
        return len(self.timesteps)

    def _restart(self) -> None:
        self._step_index = None
        self._begin_index = None

    def _next_index(self, timestep: float | Tensor) -> int:
        if self.num_inference_steps is None:
            raise ValueError("no schedule: call set_timesteps before step")
        if self._step_index is None:
            begin = self._begin_index
            self._step_index = self.index_for_timestep(timestep) if begin is None else begin
        if self._step_index >= self._num_evaluations():
            raise ValueError("the schedule is finished: call set_timesteps to start again")
        return self._step_index


def check_same_shape(model_output: Tensor, sample: Tensor) -> None:
    """Raise `ValueError` unless the network's output has the sample's shape."""
    if model_output.shape != sample.shape:
        raise ValueError(
            f"the network returned shape {tuple(model_output.shape)} for a sample of shape "
            f"{tuple(sample.shape)}; they must be equal"
        )


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in fp32, or in its own dtype where that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_descending(values: list[float], name: str, largest: float) -> None:
    """Raise `ValueError` unless `values` fall strictly, from at most `largest`, staying above 0."""
    inside = all(0 < value <= largest for value in values)  # also refuses nan
    if not values or not inside or any(a <= b for a, b in itertools.pairwise(values)):
        raise ValueError(
            f"{name} is {values}; it must fall strictly, begin at or below {largest:g} and stay "
            "above 0 (a last 0 may be given or left out)"
        )
