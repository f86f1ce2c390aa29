"""The root command: exit codes, errors as one line, help that starts fast."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sana_like.version import __version__
from sana_like_app.cli.main import one_line

Cli = Callable[..., Any]
ROOT = Path(__file__).parents[3]
FOLDERS = (".", "kernels", "pipelines", "train", "app")
START = "from sana_like_app.cli.main import main; main()"


def python(*arguments: str, code: str = START, **options: Any) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / f) for f in FOLDERS)}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code, *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").out == f"sana-like {__version__}\n"
    helped = cli("--help")
    assert helped.code == 0
    for command in ("generate", "rerun", "inspect", "convert", "doctor", "zoo", "train"):
        assert command in helped.out


def test_help_loads_nothing_heavy() -> None:
    """Processor time, best of three: wall time would measure the machine's other work."""
    code = (
        "import sys, time\n"
        "from sana_like_app.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'diffusers', 'transformers'} & set(sys.modules)\n"
        "print(time.process_time(), sorted(heavy))"
    )
    last = [python(code=code).communicate()[0].splitlines()[-1] for _ in range(3)]
    assert all(line.endswith("[]") for line in last)
    # torch alone takes longer than this.
    assert min(float(line.split()[0]) for line in last) < 1.2


def failing(error: BaseException) -> Callable[..., Any]:
    def report() -> Any:
        raise error

    return report


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("first\nsecond"), 1, "error: first second\n"),
        (FloatingPointError("step 3: NaN"), 1, "error: step 3: NaN\n"),
        (FileNotFoundError(2, "No such file", "x"), 1, "error: [Errno 2] No such file: 'x'\n"),
        (MemoryError(), 1, "error: out of memory: no more to be had; ask for a smaller --size"),
        (KeyError("key"), 1, "error: unexpected KeyError: 'key'; --debug shows where\n"),
        (ValueError(), 1, "error: ValueError\n"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_failures_are_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    monkeypatch.setattr("sana_like_app.diagnostics.report", failing(error))
    done = cli("doctor")
    assert done.code == code
    assert done.err.startswith(message) and done.err.count("\n") == 1
    assert done.out == ""


@pytest.mark.parametrize("place", [("--debug", "doctor"), ("doctor", "--debug")])
@pytest.mark.parametrize("error", [ValueError("why"), KeyError("why")])
def test_debug_shows_where(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, place: tuple[str, str], error: Exception
) -> None:
    monkeypatch.setattr("sana_like_app.diagnostics.report", failing(error))
    done = cli(*place)
    assert done.code == 1
    assert "Traceback" in done.err and "in report" in done.err


def test_a_prompt_may_be_called_debug(cli: Cli, sana: Path) -> None:
    done = cli(
        "generate", "--model", sana, "--steps", 1, "--output", "a.png", "--", "--debug"
    )  # fmt: skip
    assert done.code == 0, done.err


def test_warnings_for_users_are_notes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    def report() -> list[Any]:
        warnings.warn("the prompt\nwas cut", UserWarning, stacklevel=1)
        warnings.warn("old name", FutureWarning, stacklevel=1)
        return []

    monkeypatch.setattr("sana_like_app.diagnostics.report", report)
    done = cli("doctor")
    assert (done.code, done.err) == (0, "note: the prompt was cut\n")


def test_wrong_usage_is_2(cli: Cli) -> None:
    assert cli("nothing").code == 2
    assert cli("zoo", "nothing").code == 2
    assert cli("rerun").code == 2


def test_out_of_memory_of_a_device_names_the_knobs() -> None:
    import torch

    text = one_line(torch.OutOfMemoryError("CUDA out of memory"))
    assert "--offload" in text and "--size" in text


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_ctrl_c_is_130_and_leaves_nothing(sana: Path, tmp_path: Path) -> None:
    import signal

    process = python(
        "generate", "a fox", "--model", str(sana), "--steps", "1000", "--size", "96x96",
        "--output", "out/a.png", "--preview", "1", cwd=tmp_path,
    )  # fmt: skip
    preview = tmp_path / "out" / "a.preview.png"
    end = time.monotonic() + 120
    while not preview.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert list((tmp_path / "out").iterdir()) == []
