"""Training of the transformer, of adapters and of ControlNets, on cached latents and text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sana_like.schedulers.flow import make_sigmas
from sana_like_train.cache import cache_folder
from sana_like_train.components import load_autoencoder, load_text_encoder, pipeline_index
from sana_like_train.config import ConfigError, Recipe, TextToImageTask
from sana_like_train.control import edges
from sana_like_train.data.buckets import BucketBatchSampler, make_buckets, nearest_bucket
from sana_like_train.data.captions import choose_caption
from sana_like_train.data.records import Record
from sana_like_train.latents import PackedLatents, pack_latents
from sana_like_train.reporting import sheet
from sana_like_train.tasks.base import Batch, Position, TrainingTask, derived_seed
from sana_like_train.tasks.flow_matching import (
    FlowMatchingObjective,
    fixed_noise,
    guide,
    measured_losses,
    sample_flow,
    sample_sigmas,
)
from sana_like_train.tasks.selection import evenly, select_records
from sana_like_train.text_features import fit_text_input, pack_texts

_MEASURE_BATCH = 32
_COLUMNS = 8


class TextToImageTraining(TrainingTask):
    """The text-to-image task of a recipe; see `config.TextToImageTask`.

    Args:
        recipe: the resolved recipe.
        model: the transformer.
        controlnet: the ControlNet to train in its place, or none.
        device: where latents and text features are computed.
    """

    higher_is_better = False

    def __init__(
        self, recipe: Recipe, model: Any, controlnet: Any | None, device: torch.device
    ) -> None:
        config = recipe.task
        assert isinstance(config, TextToImageTask)
        self.config = config
        self.metric = config.metric
        self.seed = recipe.train.seed
        self.batch_size = recipe.train.batch_size
        self.half = recipe.train.precision == "bf16"
        self.folder = cache_folder(recipe.data.cache_dir)
        self.pipeline = pipeline_index(recipe.train.init_from)
        self._choose_records(recipe)
        self._read_text(device)
        if config.fit_text_input and recipe.train.init_from is None:
            fit_text_input(model, self.text)
        self.autoencoder: Any = load_autoencoder(config, self.pipeline, device)
        ratio = self.autoencoder.spatial_compression_ratio
        self.buckets = make_buckets(recipe.data.resolution**2, ratio * model.config.patch_size)
        self._read_latents()
        self._sampler: BucketBatchSampler | None = None
        self._epoch: tuple[int, list[Any]] = (-1, [])
        self.exported = (controlnet if controlnet is not None else model).train()
        self.objective: Any = FlowMatchingObjective(model, controlnet, config.contrastive_weight)

    def _choose_records(self, recipe: Recipe) -> None:
        parts = select_records(recipe.data)
        count = self.config.evaluate_pictures
        self.records = parts.train
        self.measured: dict[str, list[Record]] = {"train": evenly(parts.train, count)}
        for name, records in (("composition", parts.composition), ("held_out", parts.held_out)):
            if records:
                self.measured[name] = evenly(records, count)
        names = ["flow_loss", *(f"flow_loss_{name}" for name in self.measured)]
        if self.metric not in names:
            raise ConfigError(
                f"task.metric is {self.metric!r}; measured are {', '.join(names)} "
                "(composition and held_out need data.split)"
            )
        silent = [record.key for record in self.records if not record.captions]
        if silent:
            raise ConfigError(
                f"{len(silent)} pictures have no caption, first {silent[0]!r}; put a .txt beside "
                "each, or give data.caption for all of them"
            )

    def _read_text(self, device: torch.device) -> None:
        measured = [record for records in self.measured.values() for record in records]
        texts = [caption.text for record in self.records for caption in record.captions]
        texts += [record.captions[0].text for record in measured]
        encoder = load_text_encoder(self.config, self.pipeline, device)
        self.text = pack_texts(["", *self.config.sample_prompts, *texts], encoder, self.folder)

    def _read_latents(self) -> None:
        plain = self.config.augment.model_copy(update={"variants": 0})

        def pack(
            records: list[Record], augmented: bool, transform: Callable[[Tensor], Tensor] | None
        ) -> PackedLatents:
            return pack_latents(
                records,
                self._sizes(records),
                self.autoencoder,
                self.config.augment if augmented else plain,
                self.folder,
                seed=self.seed,
                half=self.half,
                transform=transform,
            )

        self.latents = pack(self.records, True, None)
        self.measured_latents = {n: pack(r, False, None) for n, r in self.measured.items()}
        self.controls: PackedLatents | None = None
        self.measured_controls: dict[str, PackedLatents] = {}
        if self.config.control is not None:
            self.controls = pack(self.records, True, edges)
            self.measured_controls = {n: pack(r, False, edges) for n, r in self.measured.items()}

    def _sizes(self, records: list[Record]) -> list[tuple[int, int]]:
        buckets = self.buckets
        return [buckets[nearest_bucket(r.picture_size(), buckets)] for r in records]

    def _indices(self, position: Position) -> tuple[int, ...]:
        if self._sampler is None:
            self._sampler = BucketBatchSampler(
                self._sizes(self.records),
                self.buckets,
                self.batch_size,
                seed=self.seed,
                rank=position.rank,
                world_size=position.world,
            )
            self._per_epoch = len(self._sampler.epoch_batches(0))
        epoch, index = divmod(position.micro, self._per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._sampler.epoch_batches(epoch))
        return self._epoch[1][index].indices

    def make_batch(self, position: Position) -> Batch:
        """Latents of one bucket with a caption drawn for each, noise and noise levels."""
        config = self.config
        indices = self._indices(position)
        seed = derived_seed(self.seed, "flow", position.micro, position.rank)
        rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        records = [self.records[index] for index in indices]
        texts = [
            choose_caption(r.captions, seed=self.seed, epoch=position.micro, key=r.key).text
            for r in records
        ]
        dropped = rng.random(len(texts)) < config.caption_dropout
        texts = ["" if drop else text for drop, text in zip(dropped, texts, strict=True)]
        variants = np.zeros(len(indices), dtype=int)
        if config.augment.variants:
            moved = rng.random(len(indices)) < config.augment.probability
            variants = moved * rng.integers(1, config.augment.variants + 1, len(indices))
        latents = self.latents.stack(indices, variants.tolist())
        embeds, mask = self.text.batch(texts)
        tensors = {
            "latents": latents,
            "noise": torch.randn(latents.shape, generator=generator),
            "sigmas": sample_sigmas(config.time, len(indices), generator),
            "text": embeds,
            "text_mask": mask,
        }
        if self.controls is not None:
            tensors["control"] = self.controls.stack(indices, variants.tolist())
        return Batch([record.key for record in records], tensors)

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """Flow loss at fixed noise levels and noise with the main captions, per part."""
        measures = {f"flow_loss_{name}": self._flow_loss(name, device) for name in self.measured}
        return {"flow_loss": float(np.mean(list(measures.values()))), **measures}

    def _flow_loss(self, name: str, device: torch.device) -> float:
        latents = self.measured_latents[name]
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for index, shape in enumerate(latents.shapes):
            by_shape.setdefault(shape, []).append(index)
        losses: list[float] = []
        for members in by_shape.values():
            for start in range(0, len(members), _MEASURE_BATCH):
                losses += self._losses(name, members[start : start + _MEASURE_BATCH], device)
        return float(np.mean(losses))

    def _losses(self, name: str, chosen: list[int], device: torch.device) -> list[float]:
        """Losses of some pictures of a part at every level; noise depends on the picture alone."""
        texts = [self.measured[name][index].captions[0].text for index in chosen]
        embeds, mask = self.text.batch(texts)
        latents = self.measured_latents[name].stack(chosen)
        batch = {"latents": latents, "text": embeds, "text_mask": mask}
        if name in self.measured_controls:
            batch["control"] = self.measured_controls[name].stack(chosen)
        on_device = {key: tensor.to(device) for key, tensor in batch.items()}
        return measured_losses(self.objective, on_device, chosen)

    def sample_sheet(self, device: torch.device) -> Tensor:
        """Pictures of the sample prompts (or of some captions), eight in a row, Euler steps.

        With a ControlNet: captions and controls of training pictures, which share the first shape.
        """
        config, latents = self.config, self.measured_latents["train"]
        alike = [i for i, shape in enumerate(latents.shapes) if shape == latents.shapes[0]]
        alike = alike[: 2 * _COLUMNS]
        captions = [self.measured["train"][i].captions[0].text for i in alike]
        prompts, control, shape = captions, None, latents.shapes[0]
        if self.controls is not None:
            control = self.measured_controls["train"].stack(alike).repeat(2, 1, 1, 1).to(device)
        elif config.sample_prompts:
            prompts = list(config.sample_prompts)
        noise = fixed_noise(shape, [(index,) for index in range(len(prompts))]).to(device)
        both = self.text.batch([""] * len(prompts) + prompts)
        embeds, mask = (tensor.to(device) for tensor in both)

        def velocity(x: Tensor, sigma: float) -> Tensor:
            levels = torch.full((len(embeds),), sigma, device=device)
            output = self.objective.predict(torch.cat([x, x]), levels, embeds, mask, control)
            return guide(output, config.sample_guidance)

        sigmas = make_sigmas(config.sample_steps, shift=config.sample_shift, grid="nvlabs")
        x = sample_flow(velocity, noise, sigmas.tolist())
        decoded = self.autoencoder.decode(x / self.autoencoder.config.scaling_factor).sample
        return sheet(decoded.float().clamp(-1, 1).cpu(), _COLUMNS)

    def export(self, folder: Path, *, int8: bool = False) -> None:
        """Writes a pipeline, an adapter or a ControlNet; see `exporting`."""
        from sana_like_train.exporting import export_text_to_image

        export_text_to_image(self, folder, int8=int8)
