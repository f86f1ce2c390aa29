"""Training of the transformer by flow matching, on cached latents and text features."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sana_like.autoencoders.dc_ae import AutoencoderDC
from sana_like.schedulers.flow import add_noise, euler_update, make_sigmas, shift_sigma
from sana_like.text.settings import TextSettings, embedded_settings, published_settings
from sana_like.transformers.image import SanaTransformer2DModel
from sana_like_train.cache import cache_folder
from sana_like_train.config import ConfigError, Recipe, TextToImageTask, TimeSampling
from sana_like_train.data.buckets import BucketBatchSampler, make_buckets, nearest_bucket
from sana_like_train.data.captions import choose_caption
from sana_like_train.data.records import Record
from sana_like_train.latents import pack_latents
from sana_like_train.tasks.base import Batch, Position, TrainingTask, derived_seed
from sana_like_train.tasks.selection import evenly, select_records
from sana_like_train.text_features import load_encoder, pack_texts

logger = logging.getLogger(__name__)

_TIMESTEPS = 1000  # the model's time runs from 0 to this
_MEASURE_BATCH = 32
_MEASURE_SIGMAS = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)


def sample_sigmas(config: TimeSampling, count: int, generator: torch.Generator) -> Tensor:
    """Noise levels `[count]` in (0, 1): logit-normal, then shifted (SANA, section 3.4)."""
    normal = torch.randn(count, generator=generator) * config.std + config.mean
    return shift_sigma(torch.sigmoid(normal), config.shift)


class FlowMatchingObjective(nn.Module):
    """Mean squared error of the predicted velocity `v = noise - x0`.

    With `contrastive_weight` w, `w * |prediction - v of another sample|^2` is subtracted, which
    keeps velocities of different captions apart (Stoica et al. 2025, contrastive flow matching).
    """

    def __init__(self, model: SanaTransformer2DModel, contrastive_weight: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.contrastive_weight = contrastive_weight

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        """To the loop's dictionary.

        Args:
            batch: `latents`, `noise` `[B, Z, y, x]`, `sigmas` `[B]`, `text` `[B, L, C]`,
                `text_mask` `[B, L]`.
        """
        latents, noise, sigmas = batch["latents"], batch["noise"], batch["sigmas"]
        noisy = add_noise(latents, noise, sigmas[:, None, None, None])
        output = self.model(
            noisy,
            batch["text"],
            _TIMESTEPS * sigmas,
            encoder_attention_mask=batch["text_mask"],
        ).sample.float()
        velocity = noise - latents
        error = (output - velocity).square().mean((1, 2, 3))
        per_sample = error
        if self.contrastive_weight:
            other = (output - velocity.roll(1, 0)).square().mean((1, 2, 3))
            per_sample = error - self.contrastive_weight * other
        logs = {"flow": error.mean().detach()}
        return {"loss": per_sample.mean(), "per_sample": per_sample, "logs": logs, "carry": {}}


def text_settings(config: TextToImageTask) -> TextSettings:
    """How the recipe's model reads prompts."""
    given = config.text_settings
    if isinstance(given, dict):
        return TextSettings.from_dict(given)
    return embedded_settings() if given == "embedded" else published_settings()


class TextToImageTraining(TrainingTask):
    """The text-to-image task of a recipe; see `config.TextToImageTask`."""

    higher_is_better = False

    def __init__(self, recipe: Recipe, model: SanaTransformer2DModel, device: torch.device) -> None:
        config = recipe.task
        assert isinstance(config, TextToImageTask)
        self.config = config
        self.metric = config.metric
        self.seed = recipe.train.seed
        parts = select_records(recipe.data)
        self.records = parts.train
        count = config.evaluate_pictures
        self.measured: dict[str, list[Record]] = {"train": evenly(parts.train, count)}
        for name, records in (("composition", parts.composition), ("held_out", parts.held_out)):
            if records:
                self.measured[name] = evenly(records, count)
        self.folder = cache_folder(recipe.data.cache_dir)
        self._read_text(device)
        self._read_latents(recipe, device)
        self.batch_size = recipe.train.batch_size
        self._sampler: BucketBatchSampler | None = None
        self._epoch: tuple[int, list[Any]] = (-1, [])
        self.exported = model.train()
        self.objective = FlowMatchingObjective(model, config.contrastive_weight)

    def _read_text(self, device: torch.device) -> None:
        config = self.config
        silent = [record.key for record in self.records if not record.captions]
        if silent:
            raise ConfigError(
                f"{len(silent)} pictures have no caption, first {silent[0]!r}; put a .txt beside "
                "each, or give data.caption for all of them"
            )
        encoder = load_encoder(config.text_encoder, text_settings(config), device)
        held_out = [record for records in self.measured.values() for record in records]
        texts = [caption.text for record in self.records for caption in record.captions]
        texts += [record.captions[0].text for record in held_out]
        self.text = pack_texts(["", *config.sample_prompts, *texts], encoder, self.folder)

    def _read_latents(self, recipe: Recipe, device: torch.device) -> None:
        config = self.config
        vae = AutoencoderDC.from_pretrained(config.autoencoder, dtype=torch.float32)
        self.autoencoder = vae.to(device).requires_grad_(False)
        side = recipe.data.resolution
        self.buckets = make_buckets(side * side, vae.spatial_compression_ratio)
        half = recipe.train.precision == "bf16"

        def pack(records: list[Record], variants: bool) -> Any:
            sizes = [self.buckets[nearest_bucket(r.picture_size(), self.buckets)] for r in records]
            augment = config.augment.model_copy(update={} if variants else {"variants": 0})
            return sizes, pack_latents(
                records, sizes, vae, augment, self.folder, seed=self.seed, half=half
            )

        self.sizes, self.latents = pack(self.records, True)
        self.measured_latents = {name: pack(some, False)[1] for name, some in self.measured.items()}

    def _indices(self, position: Position) -> tuple[int, ...]:
        if self._sampler is None:
            self._sampler = BucketBatchSampler(
                self.sizes,
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
        pairs = zip(indices, variants.tolist(), strict=True)
        latents = torch.stack([self.latents.get(index, variant) for index, variant in pairs])
        embeds, mask = self.text.batch(texts)
        tensors = {
            "latents": latents,
            "noise": torch.randn(latents.shape, generator=generator),
            "sigmas": sample_sigmas(config.time, len(indices), generator),
            "text": embeds,
            "text_mask": mask,
        }
        return Batch([record.key for record in records], tensors)

    def evaluate(self, device: torch.device) -> dict[str, float]:
        """Flow loss at fixed noise levels and noise with the main captions, per part."""
        measures = {f"flow_loss_{name}": self._flow_loss(name, device) for name in self.measured}
        return {"flow_loss": float(np.mean(list(measures.values()))), **measures}

    def _flow_loss(self, name: str, device: torch.device) -> float:
        records, latents = self.measured[name], self.measured_latents[name]
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for index, shape in enumerate(latents.shapes):
            by_shape.setdefault(shape, []).append(index)
        losses = []
        for members in by_shape.values():
            for start in range(0, len(members), _MEASURE_BATCH):
                chosen = members[start : start + _MEASURE_BATCH]
                x0 = torch.stack([latents.get(index) for index in chosen]).to(device)
                text = self.text.batch([records[index].captions[0].text for index in chosen])
                losses += self._losses(x0, text, chosen, device)
        return float(np.mean(losses))

    def _losses(
        self, x0: Tensor, text: tuple[Tensor, Tensor], chosen: list[int], device: torch.device
    ) -> list[float]:
        """Losses of some pictures, each at every level, its noise drawn from its own index."""
        embeds, mask = text[0].to(device), text[1].to(device)
        context = self.exported.prepare_text(embeds, mask)
        losses: list[float] = []
        for level, sigma in enumerate(_MEASURE_SIGMAS):
            noise = torch.stack(
                [torch.randn(x0.shape[1:], generator=_generator(index, level)) for index in chosen]
            ).to(device)
            noisy = add_noise(x0, noise, sigma)
            output = self.exported(noisy, context, _TIMESTEPS * sigma).sample.float()
            losses += (output - (noise - x0)).square().mean((1, 2, 3)).tolist()
        return losses

    def sample_sheet(self, device: torch.device) -> Tensor:
        """Pictures of the sample prompts (or of some captions), eight in a row, Euler steps."""
        captions = [record.captions[0].text for record in evenly(self.measured["train"], 16)]
        prompts = list(self.config.sample_prompts) or captions
        side = self.buckets[nearest_bucket((1, 1), self.buckets)]
        ratio = self.autoencoder.spatial_compression_ratio
        shape = (self.autoencoder.config["latent_channels"], side[0] // ratio, side[1] // ratio)
        x = torch.stack(
            [torch.randn(shape, generator=_generator(i, 0)) for i in range(len(prompts))]
        ).to(device)
        embeds, mask = self.text.batch([""] * len(prompts) + prompts)
        context = self.exported.prepare_text(embeds.to(device), mask.to(device))
        shift = self.config.sample_shift
        sigmas = make_sigmas(self.config.sample_steps, shift=shift, grid="nvlabs").tolist()
        for sigma, sigma_next in pairwise(sigmas):
            both = self.exported(torch.cat([x, x]), context, _TIMESTEPS * sigma).sample.float()
            empty, full = both.chunk(2)
            velocity = empty + self.config.sample_guidance * (full - empty)
            x = euler_update(x, velocity, sigma, sigma_next)
        scale = self.autoencoder.config["scaling_factor"]
        pictures = self.autoencoder.decode(x / scale).sample.float().clamp(-1, 1).cpu()
        return sheet(pictures, columns=8)

    def export(self, folder: Path, *, int8: bool = False) -> None:
        """Writes a pipeline folder: transformer, scheduler, index; embedded parts by name."""
        from sana_like_train.exporting import write_pipeline

        write_pipeline(self, folder, int8=int8)


def sheet(pictures: Tensor, columns: int) -> Tensor:
    """Pictures `[N, 3, Y, X]` in rows, white where one is missing."""
    missing = -len(pictures) % columns
    padded = torch.cat([pictures, torch.ones(missing, *pictures.shape[1:])])
    rows = [torch.cat(list(row), dim=2) for row in padded.split(columns)]
    return torch.cat(rows, dim=1)


def _generator(*counters: int) -> torch.Generator:
    return torch.Generator().manual_seed(derived_seed(0, "measure", *counters))
