"""A picture on a bare machine: no accelerations, no network, a home that cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT, ROOT / "kernels", ROOT / "pipelines"]
HIDDEN = [
    *("triton", "fla", "flash_attn", "xformers", "sageattention", "bitsandbytes", "torchao"),
    *("gradio", "fastapi", "uvicorn", "cv2", "bs4", "ftfy", "webdataset"),
]

PROBE = """
import json, socket, sys, threading
task = json.loads(sys.argv[1])
for name in task["hidden"]:
    sys.modules[name] = None
def refuse(*args, **kwargs):
    raise RuntimeError("the network was used")
socket.socket.connect = socket.socket.connect_ex = socket.socket.bind = refuse
socket.getaddrinfo = socket.create_connection = refuse

import torch
from torch.utils._python_dispatch import TorchDispatchMode

class NoDouble(TorchDispatchMode):
    # As on devices without it: tables may be computed in double, but on the CPU before they move.
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            if result.numel() > 4096:
                raise RuntimeError(f"float64 in {func}")
        return result

threads = threading.active_count()
from sana_like_pipelines import SanaPipeline
threads = threading.active_count() - threads
pipe = SanaPipeline.from_pretrained(task["folder"], dtype=torch.bfloat16)
pipe.set_progress_bar_config(disable=True)
with NoDouble():
    out = pipe("a red apple", num_inference_steps=2, height=32, width=32, generator=1)
picture = out.images[0]
low, high = picture.convert("L").getextrema()
values = pipe("a", num_inference_steps=1, height=32, width=32, output_type="pt").images
print(json.dumps({
    "size": picture.size, "range": high - low, "finite": bool(values.isfinite().all()),
    "dtype": str(pipe.transformer.dtype), "threads": threads,
}))
"""


@pytest.fixture
def read_only_home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o500)
    yield home
    home.chmod(0o700)


def test_one_picture_on_a_bare_machine(saved, read_only_home, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path) for path in SOURCES),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(read_only_home),
        "XDG_CACHE_HOME": str(read_only_home),
        "XDG_DATA_HOME": str(read_only_home),
        "CUDA_VISIBLE_DEVICES": "",
    }
    task = json.dumps({"hidden": HIDDEN, "folder": str(saved("sana").folder)})
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROBE, task],
        cwd=elsewhere, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["size"] == [32, 32] and result["finite"]
    assert result["range"] > 20, "the picture is flat"
    assert result["dtype"] == "torch.bfloat16" and result["threads"] == 0
    assert list(elsewhere.iterdir()) == [] and list(read_only_home.iterdir()) == []
