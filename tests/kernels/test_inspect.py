"""The ahead-of-time check, in processes of their own: Triton compiles there, not interprets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

KERNELS = Path(__file__).parents[2] / "kernels"

# Triton asks for the GPU at hand when the compiler looks at a kernel; this one only has a name.
TRACE = """
import torch, triton
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._subclasses import FakeTensorMode
from triton.backends.compiler import GPUTarget
from sana_like_kernels.glu_mbconv.launch import forward_op as glu
from sana_like_kernels.linear_attention.launch import forward_op as attention
from sana_like_kernels.modulated_norm.launch import forward_op as modulated
from sana_like_kernels.qk_norm_rope.launch import norm_rope_op
from sana_like_kernels.rms_norm_2d.launch import forward_op as plane

class Driver:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0

triton.runtime.driver.set_active(Driver())

def draw(*shape):
    return torch.empty(*shape, dtype=torch.bfloat16, requires_grad=True)

def count(name, function, *tensors):
    graph = aot_export_joint_simple(function, tensors, trace_joint=True).graph
    print(name, sum("triton_kernel" in str(node.target) for node in graph.nodes))

with FakeTensorMode():
    q, w, x, v = draw(2, 40, 4, 32), draw(128), draw(2, 12, 64), draw(2, 3, 64)
    state = [torch.empty(2, 4, 32, 32), torch.empty(2, 4, 32)]
    count("attention", lambda q, k, v, w, u, c, s, a, z: attention(
        q, k, v, w, u, c, s, a, z, 1e-15, 1e-5)[:1],
        q, draw(2, 40, 4, 32), draw(2, 40, 4, 32), w, draw(128),
        torch.empty(40, 16), torch.empty(40, 16), *state)
    count("glu", lambda h, w, b, e: (glu(h, w, b, e),),
        draw(2, 5, 6, 64), draw(64, 1, 3, 3), draw(64), draw(64))
    count("modulated", lambda x, y, g, a, b: modulated(x, y, g, a, b, False, 1e-6),
        x, draw(2, 12, 64), v, draw(2, 3, 64), draw(2, 3, 64))
    count("plane", lambda x, w, b, r: (plane(x, w, b, r, "none", 1e-5),),
        x, draw(64), draw(64), draw(2, 12, 64))
    count("norm_rope", lambda x, w: (norm_rope_op(x, w, None, None, 1e-5),), q, w)
"""


def run(*arguments: str, timeout: int = 280) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(KERNELS), "TRITON_INTERPRET": "0"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment, capture_output=True, text=True, check=False, timeout=timeout,
    )  # fmt: skip


def test_rows_of_the_table():
    done = run("-m", "sana_like_kernels.inspect", "--json", "--kernel", "row_rms", "--arch", "90")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["kernel"] for row in rows} == {"row_rms_kernel"} and len(rows) > 3
    assert all(row["ok"] and row["arch"] == 90 and row["registers"] > 0 for row in rows)


def test_interpreted_kernels_are_refused():
    environment = {**os.environ, "PYTHONPATH": str(KERNELS), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "sana_like_kernels.inspect"],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "TRITON_INTERPRET is set" in done.stderr


def test_the_compiler_sees_every_kernel_forward_and_backward():
    """Kernels become nodes of the graph; an input that a kernel wrote to would be an error."""
    done = run("-c", TRACE)
    assert done.returncode == 0, done.stderr
    counts = dict(line.split() for line in done.stdout.splitlines())
    # Attention: two norms of inputs, sums, results; four of its own backward, two of the norms'.
    wanted = {"attention": "10", "glu": "3", "modulated": "2", "plane": "2", "norm_rope": "2"}
    assert counts == wanted


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arch", [80, 90, 100, 120])
def test_no_kernel_spills_or_takes_too_much_shared_memory(arch):
    arguments = ("--json", "--fewer", "--arch", str(arch))
    done = run("-m", "sana_like_kernels.inspect", *arguments, timeout=1700)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) > 100, done.stderr
    assert [row for row in rows if not row["ok"]] == []
    assert done.returncode == 0
