"""The comparison with diffusers: it times what is right, and nothing else."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from sana_like_app.bench import compare as module
from sana_like_app.bench.compare import Plan, compare, products_share, relative_rms
from sana_like_app.bench.memory import resettable, watching
from sana_like_app.bench.scaling import slope
from sana_like_app.bench.works import Work
from sana_like_app.cli.main import main

CPU = torch.device("cpu")


class Noisy(nn.Linear):
    """A layer that is off by a factor, in all dtypes or in half precision alone."""

    factor, half_only = 1.0, False

    def forward(self, x):
        off = self.factor if not self.half_only or x.dtype != torch.float32 else 1.0
        return super().forward(x) * off


def work(factor=1.0, half_only=False):
    theirs, ours = nn.Linear(64, 64), Noisy(64, 64)
    ours.factor, ours.half_only = factor, half_only
    ours.load_state_dict(theirs.state_dict(), assign=True)
    run = lambda model, x: model(x["x"])  # noqa: E731
    return Work("layer", ours, theirs, {"x": torch.randn(50, 64)}, run, run)


def plan(**changes):
    return Plan([torch.bfloat16, torch.float32], CPU, **changes)


def test_right_numbers_are_timed_there_and_back(monkeypatch):
    order = []
    monkeypatch.setattr(module, "seconds", lambda call, device: order.append(call.__name__) or 1.0)
    monkeypatch.setattr(module, "products_share", lambda *_: 0.5)
    rows = list(compare(work(), plan(repeats=2)))
    assert [row.dtype for row in rows] == ["float32", "bfloat16"]
    assert order[:8] == ["give_theirs"] * 2 + ["give_ours"] * 4 + ["give_theirs"] * 2
    for row in rows:
        assert not row.refused and row.ratio == 1.0 and row.products == 0.5
        assert len(row.runs["ours"]) == len(row.runs["theirs"]) == 4
    assert rows[0].error <= 1e-5 and 0 < rows[1].error <= 1.2 * rows[1].their_error


@pytest.mark.parametrize(
    ("wrong", "refused"),
    [
        (work(1.001), [True, False]),
        (work(1.1), [True, True]),
        (work(1.01, half_only=True), [False, True]),
        (work(float("nan")), [True, True]),
    ],
)
def test_wrong_numbers_get_no_time(wrong, refused):
    rows = list(compare(wrong, plan()))
    assert [bool(row.refused) for row in rows] == refused
    for row in rows:
        assert (row.ours is None) == (row.ratio is None) == bool(row.refused)
        json.dumps(row.record())


def test_other_work_is_kept_off_the_runs_that_count():
    inside, seen = [], []

    @contextmanager
    def around():
        inside.append(True)
        yield
        inside.pop()

    subject = work()
    run = subject.run_ours
    subject.run_ours = lambda model, x: seen.append(bool(inside)) or run(model, x)
    list(compare(subject, plan(around=around)))
    # Each of the two rows: the check outside, two visits and the profile inside.
    assert seen == [False, True, True, True] * 2


def test_models_share_their_weights():
    subject = work()
    for dtype in (torch.float32, torch.bfloat16):
        subject.cast(dtype)
        assert subject.ours.weight.data_ptr() == subject.theirs.weight.data_ptr()
        assert subject.ours.weight.dtype == dtype


def test_errors_are_relative():
    assert relative_rms(torch.tensor([1.1, 0.0]), torch.tensor([1.0, 0.0])) == pytest.approx(0.1)
    assert torch.tensor(relative_rms(torch.tensor([float("nan")]), torch.ones(1))).isnan()


def test_share_of_products():
    x = torch.randn(300, 300)
    assert products_share(lambda: [x @ x for _ in range(20)], CPU) > 0.5
    assert products_share(lambda: [x.sin() for _ in range(20)], CPU) == 0


@pytest.mark.skipif(not resettable(), reason="this system does not tell the peak")
def test_peak_is_begun_anew():
    size = 256 * 2**20
    with watching(CPU) as large:
        torch.ones(size // 4).sum()
    with watching(CPU) as small:
        torch.ones(4).sum()
    assert large.total is not None and small.total is not None
    assert 0.8 * size < large.total - small.total < 1.5 * size


def test_slope_of_powers():
    across = [1, 2, 4, 8]
    assert slope(across, [3 * x for x in across]) == pytest.approx(1)
    assert slope(across, [0.1 * x * x for x in across]) == pytest.approx(2)


@pytest.mark.parametrize(
    "command",
    [
        ["table", "--rows", "decode,cook"],
        ["block", "--dtype", "fp33"],
        ["kernel", "--device", "abacus"],
    ],
)
def test_wrong_options_are_refused(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", *command])
    assert stop.value.code == 1
    assert "legal" in capsys.readouterr().err


def test_a_block_from_the_command_line(capsys, monkeypatch):
    monkeypatch.setattr("sana_like_app.bench.works.SLOTS", 12)
    main_exit = pytest.raises(SystemExit)
    with main_exit as stop:
        main(["bench", "block", "--size", "64", "--tokens", "5", "--repeats", "1"])
    assert not stop.value.code
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["bench"] == "block" and len(last["rows"]) == 2
    assert all(not row["refused"] and row["ratio"] > 0 for row in last["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("command", ["kernel", "autoencoder"])
def test_other_commands(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", command, "--size", "64", "--repeats", "1"])
    assert not stop.value.code
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert rows and all(not row["refused"] for row in rows)
