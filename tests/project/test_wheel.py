"""The wheel beside other people's packages: it adds its own names and takes them away again."""

from __future__ import annotations

import csv
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from sana_like.zoo.fetch import is_fetched

ROOT = Path(__file__).parents[2]
NEIGHBOUR = "kernels"  # Hugging Face's package, whose import name is also a folder of ours
OURS = ["sana_like", "sana_like_kernels", "sana_like_pipelines", "sana_like_train", "sana_like_app"]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
    run(*pip, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def interpreter(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that holds the wheel, its neighbour, and sees our dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=True)
    python = next(path for path in folder.glob("venv/*/python*") if path.stem == "python")
    neighbour = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    if subprocess.run([*neighbour, NEIGHBOUR], capture_output=True, check=False).returncode:
        pytest.skip(f"the package index does not give {NEIGHBOUR}")
    packages = Path(run(python, "-c", SITE, cwd=folder).strip())
    (neighbour_wheel,) = folder.glob(f"{NEIGHBOUR}-*.whl")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", neighbour_wheel, wheel, cwd=folder)
    # Torch and the rest come from the environment that runs the tests, after the new packages.
    borrowed = sysconfig.get_path("purelib")
    (packages / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
    return python


SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
IMPORTS = f"""
import importlib, pathlib, sys
here = pathlib.Path(sys.prefix).resolve()
for name in {[*OURS, NEIGHBOUR]!r}:
    module = importlib.import_module(name)
    assert here in pathlib.Path(module.__file__).resolve().parents, (name, module.__file__)
from kernels import get_kernel
"""


NO_NETWORK = """
import socket
def refuse(*args, **kwargs):
    raise RuntimeError("the network was used")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = refuse
"""


def test_wheel_lives_beside_its_neighbour_and_leaves_cleanly(
    interpreter: Path, tmp_path: Path
) -> None:
    packages = Path(run(interpreter, "-c", SITE, cwd=tmp_path).strip())
    (record,) = packages.glob("sana_like-*.dist-info/RECORD")
    with record.open(encoding="utf-8", newline="") as file:
        files = [row[0] for row in csv.reader(file)]
    tops = {name.split("/")[0] for name in files if not name.startswith("..")}
    assert tops == {*OURS, record.parent.name}
    assert any(name.startswith("sana_like/zoo/") for name in files)
    assert {Path(name).name for name in files} >= {"LICENSE", "NOTICE", "py.typed"}

    run(interpreter, "-c", IMPORTS, cwd=tmp_path)
    command = interpreter.with_name("sana-like" + interpreter.suffix)
    assert "generate" in run(command, "--help", cwd=tmp_path)

    if "sana_like/zoo/emoji/model_index.json" in files and is_fetched():
        # A start file of the environment's own closes the network for every process in it.
        (packages / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
        done = run(command, "generate", "a red apple, 3d", "--seed", "1", cwd=tmp_path)
        picture = tmp_path / done.split("  ")[0]
        assert picture.read_bytes().startswith(b"\x89PNG")

    run(interpreter, "-m", "pip", "uninstall", "--quiet", "--yes", "sana-like", cwd=tmp_path)
    assert not list(packages.glob("sana_like*"))
    run(interpreter, "-c", "from kernels import get_kernel", cwd=tmp_path)
