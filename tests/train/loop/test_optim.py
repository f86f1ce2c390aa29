from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from sana_like_train.config import OptimizerConfig, Schedule
from sana_like_train.ema import ExponentialMovingAverage
from sana_like_train.optim import (
    Muon,
    build_optimizers,
    learning_rate_factor,
    orthogonalize,
    set_learning_rate,
)


def test_warm_up_rises_in_a_line() -> None:
    schedule = Schedule(kind="constant", warmup_steps=4)
    factors = [learning_rate_factor(schedule, step, 100) for step in range(6)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_cosine() -> None:
    schedule = Schedule(kind="cosine", warmup_steps=10, floor=0.1)
    assert learning_rate_factor(schedule, 10, 110) == pytest.approx(1.0)
    assert learning_rate_factor(schedule, 60, 110) == pytest.approx(0.55)
    assert learning_rate_factor(schedule, 110, 110) == pytest.approx(0.1)
    assert learning_rate_factor(schedule, 10_000, 110) == pytest.approx(0.1)


def test_warmup_stable_decay() -> None:
    schedule = Schedule(kind="wsd", warmup_steps=10, decay_steps=40)
    assert [learning_rate_factor(schedule, s, 100) for s in (10, 59, 60)] == [1.0, 1.0, 1.0]
    assert learning_rate_factor(schedule, 70, 100) == pytest.approx(1 - math.sqrt(0.25))
    assert learning_rate_factor(schedule, 100, 100) == pytest.approx(0.0)


@pytest.mark.parametrize("shape", [(3, 24, 16), (2, 16, 24), (1, 16, 16)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape) * 7
    values = torch.linalg.svdvals(orthogonalize(matrices))
    # The quintic iteration aims at a band, not at 1; square random matrices have a tiny value.
    assert values.max() < 1.3
    assert values.median() > 0.6
    left = torch.linalg.svd(matrices, full_matrices=False)
    sign = torch.einsum("kir,kij,kjr->kr", left.U, orthogonalize(matrices), left.Vh.mT)
    assert (sign > 0).all()  # the same singular vectors, the same signs


def test_muon_moves_by_a_fixed_size_whatever_the_gradient_scale() -> None:
    moves = []
    for scale in (1e-3, 1.0, 1e3):
        torch.manual_seed(1)
        weight = nn.Parameter(torch.randn(8, 12))
        before = weight.detach().clone()
        weight.grad = torch.randn(8, 12) * scale
        Muon([weight], lr=0.1, momentum=0.9).step()
        moves.append(weight.detach() - before)
    assert torch.allclose(moves[0], moves[1], atol=2e-3)
    assert torch.allclose(moves[1], moves[2], atol=2e-3)
    rms = moves[1].square().mean().sqrt()
    assert 0.1 * 0.2 * 0.6 < rms < 0.1 * 0.2 * 1.2  # AdamW's usual 0.2 lr


def test_muon_updates_equal_shapes_together_as_alone() -> None:
    torch.manual_seed(2)
    weights = [nn.Parameter(torch.randn(6, 9)) for _ in range(3)]
    gradients = [torch.randn(6, 9) for _ in range(3)]
    alone = copy.deepcopy(weights)
    for group in (weights, alone):
        for weight, gradient in zip(group, gradients, strict=True):
            weight.grad = gradient.clone()
    Muon(weights, lr=0.1, weight_decay=0.1).step()
    for weight in alone:
        Muon([weight], lr=0.1, weight_decay=0.1).step()
    for one, other in zip(weights, alone, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_muon_takes_a_kernel_as_the_matrix_of_its_window() -> None:
    torch.manual_seed(3)
    kernel = nn.Parameter(torch.randn(6, 4, 3, 3))
    matrix = nn.Parameter(kernel.detach().flatten(1).clone())
    kernel.grad = torch.randn(6, 4, 3, 3)
    matrix.grad = kernel.grad.flatten(1).clone()
    for weight in (kernel, matrix):
        Muon([weight], lr=0.1, weight_decay=0.1).step()
    assert torch.equal(kernel.detach().flatten(1), matrix.detach())


def test_muon_can_keep_the_norm_of_a_weight() -> None:
    torch.manual_seed(5)
    weights = [nn.Parameter(torch.randn(6, 9)), nn.Parameter(torch.randn(6, 2, 3, 3))]
    before = [w.detach().clone() for w in weights]
    optimizer = Muon(weights, lr=0.3, weight_decay=0.1, fixed_norm=True)
    for _ in range(5):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
    for weight, old in zip(weights, before, strict=True):
        assert weight.norm().item() == pytest.approx(old.norm().item(), rel=1e-5)
        assert not torch.allclose(weight, old, atol=0.1)


def test_muon_orthogonalises_large_kernels_in_blocks_of_rows() -> None:
    torch.manual_seed(4)
    whole = nn.Parameter(torch.zeros(1024, 64, 3, 3))
    gradient = torch.randn(1024, 64, 3, 3)
    parts = [nn.Parameter(torch.zeros(256, 64, 3, 3)) for _ in range(4)]
    whole.grad = gradient
    for part, own in zip(parts, gradient.split(256), strict=True):
        part.grad = own.clone()
    Muon([whole], lr=0.1).step()
    for part in parts:
        Muon([part], lr=0.1).step()
    # The blocks of one kernel are one batch of products, four kernels are four.
    assert torch.allclose(whole.detach(), torch.cat([p.detach() for p in parts]), atol=1e-3)


def test_muon_refuses_what_is_no_matrix() -> None:
    with pytest.raises(ValueError, match="matrices"):
        Muon([nn.Parameter(torch.zeros(3))], lr=0.1)


def test_every_parameter_has_one_optimizer_and_vectors_no_decay() -> None:
    module = nn.ModuleDict(
        {
            "proj_out": nn.Linear(4, 4),
            "proj_out_too": nn.Linear(4, 6),  # begins like the excluded proj_out
            "conv": nn.Conv2d(2, 2, 3),
            "depthwise": nn.Conv2d(2, 2, 3, groups=2),
        }
    )
    module["proj_out_too"].bias.requires_grad_(False)
    optimizers = build_optimizers(module, OptimizerConfig(kind="muon", weight_decay=0.5), 1e-2)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    parameters = [p for group in groups for p in group["params"]]
    assert len({id(p) for p in parameters}) == len(parameters)
    assert {id(p) for p in parameters} == {id(p) for p in module.parameters() if p.requires_grad}
    for group in groups:
        decays = {p.ndim >= 2 for p in group["params"]}
        assert decays == {group["weight_decay"] > 0}
    muon = [
        p for o in optimizers if isinstance(o, Muon) for g in o.param_groups for p in g["params"]
    ]
    assert [id(p) for p in muon] == [id(module[n].weight) for n in ("proj_out_too", "conv")]
    set_learning_rate(optimizers, 0.5)
    assert {group["lr"] for group in groups} == {5e-3}


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="requires a gradient"):
        build_optimizers(nn.Linear(2, 2).requires_grad_(False), OptimizerConfig(), 1e-3)


def test_average_has_its_closed_form() -> None:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 1.0)
    ema = ExponentialMovingAverage(module, decay=0.9, warmup=1.0)
    for _ in range(5):
        nn.init.constant_(module.weight, 3.0)
        ema.update(module)
    # decay min(0.9, (1 + n) / (1 + n)) = 0.9 from the start: 3 - 2 * 0.9^5
    assert ema.average["weight"].item() == pytest.approx(3 - 2 * 0.9**5, abs=1e-6)


def test_warm_up_of_the_average_forgets_the_start() -> None:
    module = nn.Linear(1, 1, bias=False)
    ema = ExponentialMovingAverage(module, decay=0.9999, warmup=10.0)
    nn.init.constant_(module.weight, 3.0)
    for _ in range(100):
        ema.update(module)
    assert ema.average["weight"].item() == pytest.approx(3.0, abs=1e-3)


def test_averages_stand_in_for_the_weights_and_leave() -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    ema = ExponentialMovingAverage(module, decay=0.5)
    assert set(ema.average) == {"weight"}
    nn.init.constant_(module.weight, 5.0)
    weight = module.weight
    with ema.applied_to(module):
        assert not torch.equal(module.weight, torch.full((2, 2), 5.0))
    assert module.weight is weight and torch.equal(weight, torch.full((2, 2), 5.0))
    with pytest.raises(ValueError, match="differ"):
        ema.load_state_dict({"other": torch.zeros(1)}, 0)
    with pytest.raises(ValueError, match="shape"):
        ema.load_state_dict({"weight": torch.zeros(1)}, 0)
