"""The benchmark of the kernels: wrong numbers get no time, and the search finds what is faster."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import partial

import pytest
import torch

from sana_like_kernels import bench, tuning
from sana_like_kernels.bench import tune

CPU = torch.device("cpu")
QUICK = bench.Effort(warm_ups=0, fewest=1, most=1, seconds=0.0)
MEMORY = bench.Bandwidth(1e9, "invented")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_case_runs_and_is_right(dtype, interpreter):
    for case in bench.cases(tiny=True):
        rows = list(bench.measure_case(case, dtype, CPU, MEMORY, effort=QUICK))
        assert [row.passes for row in rows] == ["forward", "both"]
        for row in rows:
            assert row.refused == "" and row.error <= row.limit
            assert row.timing.count == 1 and row.plain.median > 0
            assert row.bound == pytest.approx(row.bytes / 1e9 / row.timing.median)
            json.dumps(row.record())


def test_wrong_numbers_get_no_time():
    case = next(bench.cases(tiny=True))

    def scaled(*tensors, backend, factor):
        factor = 1.0 if tensors[0].dtype == torch.float64 else factor
        return case.call(*tensors, backend="torch") * factor

    for factor in (1.001, float("nan")):
        broken = dataclasses.replace(case, call=partial(scaled, factor=factor))
        for row in bench.measure_case(broken, torch.float32, CPU, MEMORY, effort=QUICK):
            assert row.timing is row.plain is row.bound is None
            assert row.refused == "wrong numbers"


def test_no_memory_for_the_check_is_no_time(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError

    case = dataclasses.replace(next(bench.cases(tiny=True)), call=full)
    (row, _) = bench.measure_case(case, torch.float32, CPU, MEMORY, effort=QUICK)
    assert "no memory" in row.refused and math.isnan(row.error)


def test_sizes_and_bytes_of_published_models():
    full = {(case.op, case.label): case for case in bench.cases()}
    assert len(full) == len(list(bench.cases()))
    n, channels = 4096, 2240
    case = full["linear_attention", "B2 N4096 H70 D32"]
    assert 2 * case.forward == 2 * 8 * n * channels  # the 8 N C bytes of a sample in bf16
    assert {case.op for case in full.values()} == {case.op for case in bench.cases(tiny=True)}


def test_times_have_quartiles():
    timing = bench.time_call(lambda: None, CPU, dataclasses.replace(QUICK, most=9, fewest=9))
    assert timing.count == 9 and 0 <= timing.low <= timing.median <= timing.high


def test_a_copy_has_a_bandwidth():
    found = bench.bandwidth(CPU, QUICK, 2**20)
    assert found.bytes_per_second > 0 and "1 MiB" in found.source


def test_a_trial_holds_inside_its_block_alone():
    row = tuning.TABLE["row"][0]
    other = dataclasses.replace(row, num_warps=2 * row.num_warps)
    with tuning.trial("row", row, other):
        assert tuning.parameters("row", row.width, torch.float32) is other
        assert tuning.parameters("row", 2 * row.width, torch.float32) is tuning.TABLE["row"][1]
    assert tuning.parameters("row", row.width, torch.float32) is row


def test_neighbours_differ_in_one_parameter_and_stay_in_range():
    for rows in tuning.TABLE.values():
        for row in rows:
            near = list(tune.neighbours(row))
            assert near and row not in near
            for other in near:
                changed = {k for k in row.blocks if row.blocks[k] != other.blocks[k]}
                options = (row.num_warps != other.num_warps) + (row.num_stages != other.num_stages)
                assert len(changed) + options == 1
                assert (other.width, other.itemsize) == (row.width, row.itemsize)


def test_the_climb_goes_to_the_best_and_round_what_cannot_run():
    start = tuning.Launch(64, 2, {"ROWS": 1}, num_warps=1)

    def cost(launch):
        if launch.num_warps == 8:
            return math.inf
        return abs(launch.blocks["ROWS"] - 16) + abs(launch.num_warps - 4) + launch.num_stages

    tried = tune.climb(start, cost, lambda: False)
    best, seconds = tried[0]
    assert (best.blocks["ROWS"], best.num_warps, best.num_stages, seconds) == (16, 4, 1, 1)
    assert tune.climb(start, cost, lambda: True) == [(start, cost(start))]


def test_searches_give_rows_of_the_table(interpreter, monkeypatch):
    calls = iter(range(10**6))
    found = list(
        bench.searches(
            CPU, kernels=["row"], effort=QUICK, enough=lambda: next(calls) > 8, tiny=True
        )
    )
    assert found and all(one.tried > 0 for one in found)
    line = found[0].source("2026-12-01: a machine").rstrip(",")
    row = eval(line, {"_row": tuning._row, "ANY_WIDTH": tuning.ANY_WIDTH})
    assert row == dataclasses.replace(found[0].after, measured="2026-12-01: a machine")
    with pytest.raises(ValueError, match="no kernels"):
        next(bench.searches(CPU, kernels=["rows"]))
