"""Importing starts nothing, fetches nothing, and needs none of the optional libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "sana_like_kernels": ROOT / "kernels",
    "sana_like": ROOT,
    "sana_like_pipelines": ROOT / "pipelines",
    "sana_like_train": ROOT / "train",
    "sana_like_app": ROOT / "app",
}
OPTIONAL = [
    "triton", "fla", "flash_attn", "xformers", "sageattention", "bitsandbytes",
    "gradio", "fastapi", "uvicorn", "cv2", "bs4", "ftfy", "torchao",
]  # fmt: skip
# What the top of each package may bring along. Everything else comes when a name is used.
HEAVY = ["torch", "transformers", "diffusers", "peft", "accelerate", "torchvision", "gguf", "PIL"]
ALLOWED = {"sana_like_kernels": {"torch"}}

# Runs in a fresh interpreter: hides the libraries, closes the network, then does the imports and
# prints what they did. Modules set to None look uninstalled, to `import` and to `find_spec`.
PROBE = """
import importlib, json, pkgutil, socket, sys, threading
task = json.loads(sys.argv[1])
for name in task["hidden"]:
    sys.modules[name] = None
def refuse(*args, **kwargs):
    raise RuntimeError("the network was used")
socket.socket.connect = socket.socket.connect_ex = socket.socket.bind = refuse
socket.getaddrinfo = socket.create_connection = refuse
before = threading.active_count()
package = importlib.import_module(task["package"])
loaded = [name for name in task["heavy"] if sys.modules.get(name) is not None]
if task["everything"]:
    for name in package.__all__:
        getattr(package, name)
        assert name in dir(package), name
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith((".__main__", ".triton")):
            importlib.import_module(module.name)
print(json.dumps({"loaded": loaded, "threads": threading.active_count() - before}))
"""


def probe(package: str, folder: Path, *, hidden: list[str], everything: bool) -> dict[str, Any]:
    """Import `package` in a fresh process that is started from an empty folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path) for path in PACKAGES.values()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
    }
    task = {"package": package, "hidden": hidden, "heavy": HEAVY, "everything": everything}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROBE, json.dumps(task)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("package", PACKAGES)
def test_top_of_package_is_light(package: str, tmp_path: Path) -> None:
    result = probe(package, tmp_path, hidden=OPTIONAL, everything=False)
    assert set(result["loaded"]) <= ALLOWED.get(package, set())
    assert result["threads"] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_imports_on_a_bare_machine(package: str, tmp_path: Path) -> None:
    """Public names and all modules, with the optional libraries hidden and the network closed."""
    result = probe(package, tmp_path, hidden=OPTIONAL, everything=True)
    assert result["threads"] == 0
    assert list(tmp_path.iterdir()) == [], "importing wrote files"


def test_command_line_starts_without_torch(tmp_path: Path) -> None:
    hidden = [*OPTIONAL, "torch", "diffusers", "transformers", "accelerate"]
    result = probe("sana_like_app.cli.main", tmp_path, hidden=hidden, everything=False)
    assert result["loaded"] == []
