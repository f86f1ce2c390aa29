"""The first-block cache of one model: which rows are run whole, and what the others become."""

from __future__ import annotations

import pytest
import torch

from sana_like.transformers.first_block_cache import FirstBlockCache
from sana_like.transformers.image import SanaTransformer2DModel

LAYERS = 4


@pytest.fixture
def model(narrow, shake):
    return shake(SanaTransformer2DModel(**narrow | {"num_layers": LAYERS}))


@pytest.fixture
def arguments(model):
    generator = torch.Generator().manual_seed(5)
    latent = torch.randn(4, 32, 3, 3, generator=generator)
    text = model.prepare_text(torch.randn(4, 6, 20, generator=generator))
    return latent, text, torch.full((4,), 500.0)


@torch.no_grad()
def run(model, arguments, cache=None, branches=("negative", "prompt"), **more):
    passed = None if cache is None else cache.for_pass(branches)
    return model(*arguments, block_cache=passed, **more).sample


def test_a_step_that_is_run_whole_is_exact(model, arguments):
    cache = FirstBlockCache(1e9)
    cache.begin_step(0, 3)
    assert torch.equal(run(model, arguments, cache), run(model, arguments))
    assert cache.blocks_run == cache.blocks_in_all == [2 * LAYERS, 2 * LAYERS]


def test_unchanged_inputs_are_skipped_and_give_the_same(model, arguments):
    exact = run(model, arguments)
    cache = FirstBlockCache(1e-6)
    for step in range(3):
        cache.begin_step(step, 4)
        torch.testing.assert_close(run(model, arguments, cache), exact, atol=1e-5, rtol=1e-5)
    assert cache.blocks_in_all == [3 * 2 * LAYERS] * 2
    assert cache.blocks_run == [2 * (LAYERS + 1 + 1)] * 2
    assert cache.passes_skipped == [4, 4]
    cache.begin_step(3, 4)
    run(model, arguments, cache)
    assert cache.passes_skipped == [4, 4], "the last step is run whole"


def test_rows_decide_for_themselves(model, arguments):
    """Row 2 (picture 0 of the prompt's branch) moves far, the others do not."""
    latent, text, time = arguments
    moved = latent.clone()
    moved[2] = torch.randn(32, 3, 3, generator=torch.Generator().manual_seed(9))
    exact = run(model, (moved, text, time))
    cache = FirstBlockCache(0.05)
    cache.begin_step(0, 9)
    run(model, arguments, cache)
    cache.begin_step(1, 9)
    torch.testing.assert_close(run(model, (moved, text, time), cache), exact, atol=1e-5, rtol=1e-5)
    assert cache.blocks_run == [2 * LAYERS + 1 + LAYERS, 2 * LAYERS + 1 + 1]
    assert cache.passes_skipped == [1, 2]
    # What is compared with later is the row's own last whole step.
    cache.begin_step(2, 9)
    torch.testing.assert_close(run(model, (moved, text, time), cache), exact, atol=1e-5, rtol=1e-5)
    assert cache.passes_skipped == [3, 4]


def test_branches_are_known_by_name(model, arguments):
    """A branch that is left out, and the other order, change nothing for the rest."""
    latent, text, time = arguments
    cache = FirstBlockCache(1e-6)
    cache.begin_step(0, 9)
    run(model, arguments, cache)
    cache.begin_step(1, 9)
    prompt = (latent[2:], text.rows(slice(2, 4)), time[2:])
    torch.testing.assert_close(
        run(model, prompt, cache, ("prompt",)), run(model, prompt), atol=1e-5, rtol=1e-5
    )
    assert cache.passes_skipped == [1, 1]
    run(model, prompt, cache, ("perturbed",))
    assert cache.passes_skipped == [1, 1], "never seen before"


def test_control_that_sets_in_is_not_missed(model, arguments):
    residuals = [torch.randn(4, 9, model.inner_dim) for _ in range(2)]
    cache = FirstBlockCache(1e9)
    cache.begin_step(0, 9)
    run(model, arguments, cache)
    cache.begin_step(1, 9)
    exact = run(model, arguments, controlnet_block_samples=residuals)
    got = run(model, arguments, cache, controlnet_block_samples=residuals)
    assert torch.equal(got, exact)


def test_perturbed_rows_stay_with_their_row(model, arguments):
    rows = torch.tensor([False, False, True, True])
    perturbed = {"perturbed_layers": (2,), "perturbed_rows": rows}
    moved = (arguments[0] + torch.tensor([0, 3.0, 0, 3.0]).view(4, 1, 1, 1), *arguments[1:])
    exact = run(model, moved, **perturbed)
    cache = FirstBlockCache(1e-5)
    cache.begin_step(0, 9)
    run(model, arguments, cache, **perturbed)
    cache.begin_step(1, 9)
    got = run(model, moved, cache, **perturbed)
    torch.testing.assert_close(got, exact, atol=1e-5, rtol=1e-5)
    assert cache.passes_skipped == [2, 0]


def test_not_a_number_is_run_whole(model, arguments):
    cache = FirstBlockCache(1e9)
    cache.begin_step(0, 9)
    run(model, arguments, cache)
    broken = (arguments[0].clone(), *arguments[1:])
    broken[0][1] = float("nan")
    cache.begin_step(1, 9)
    assert run(model, broken, cache)[1].isnan().all()
    assert cache.passes_skipped == [2, 1]


@pytest.mark.parametrize("threshold", [0, -1, float("nan"), float("inf"), "a", True])
def test_thresholds_that_mean_nothing(threshold):
    with pytest.raises(ValueError, match="positive number"):
        FirstBlockCache(threshold)
