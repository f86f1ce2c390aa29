"""A machine with nothing extra: no optional library, no network, no home to write to, no fp64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[3]
FOLDERS = (".", "kernels", "pipelines", "train", "app")
HIDDEN = [
    "triton", "fla", "flash_attn", "xformers", "sageattention", "bitsandbytes", "gradio",
    "ftfy", "bs4", "cv2", "torchao", "triton.language",
]  # fmt: skip

# Float64 is what Apple's GPUs lack: here it may not enter or leave any part of the networks.
SCRIPT = """
import json, socket, sys
hidden, arguments = json.loads(sys.argv[1])
for name in hidden:
    sys.modules[name] = None
def refuse(*args, **kwargs):
    raise RuntimeError("the network was used")
socket.socket.connect = socket.socket.connect_ex = socket.socket.bind = refuse
socket.getaddrinfo = socket.create_connection = refuse
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_leaves
def check(module, given, made):
    for leaf in tree_leaves((given, made)):
        if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64:
            raise RuntimeError(f"float64 in {type(module).__name__}")
register_module_forward_hook(check)
from sana_like_app.cli.main import main
main(arguments)
"""


def test_one_picture_in_bf16(sana: Path, tmp_path: Path) -> None:
    work, blocked = tmp_path / "work", tmp_path / "file"
    work.mkdir()
    blocked.write_text("so that no folder can be made below")
    home = str(blocked / "home")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in FOLDERS),
        **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), home),
        "USERPROFILE": home,
    }
    arguments = ["generate", "a fox", "--model", str(sana), "--dtype", "bf16", "--seed", "1"]
    arguments += ["--steps", "4", "--output", "a.png"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, json.dumps([HIDDEN, arguments])],
        cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    off = [line for line in done.stderr.splitlines() if "off: " in line]
    assert len(off) == 1 and "triton" in off[0]
    assert "Traceback" not in done.stderr
    pixels = np.asarray(Image.open(work / "a.png"))
    assert pixels.shape == (32, 32, 3) and pixels.std() > 1
    assert sorted(path.name for path in work.iterdir()) == ["a.png", "a.png.json"]
