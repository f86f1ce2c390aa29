"""The commands of `sana-like bench` that compare with diffusers."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sana_like_app.bench.compare import Plan
    from sana_like_app.bench.works import Work

SMALL, LARGE = "sana-0.6b-1024", "sana-1.5-1.6b-1024"
SMALL_512 = "sana-0.6b-512"
CODEC = "dc-ae-f32c32-sana-1.1"

Dtypes = Annotated[
    str, typer.Option("--dtype", help="Number formats by commas; fp32 is always checked.")
]
Repeats = Annotated[int, typer.Option("--repeats", min=1, help="Runs in each of two visits.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Of the processor.")]
Device = Annotated[str, typer.Option("--device", help="As in generate.")]
Compiled = Annotated[
    bool, typer.Option("--compiled", help="Also both under torch.compile; takes minutes.")
]
Before = Annotated[
    str | None,
    typer.Option("--before", help="Command before the runs that count, to still the machine."),
]
After = Annotated[str | None, typer.Option("--after", help="Command after them.")]
Size = Annotated[int, typer.Option("--size", min=32, help="Of the picture, in pixels.")]
Tokens = Annotated[int, typer.Option("--tokens", min=2, help="Of the prompt.")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Of the sampler.")]
Preset = Annotated[str, typer.Option("--preset", help="A published transformer.")]
Codec = Annotated[str, typer.Option("--autoencoder", help="A published autoencoder.")]

# What is aimed at on a processor, times faster than diffusers.
TARGETS = {
    "decode": {"bfloat16": 2.8, "float32": 1.5},
    "encode": {"bfloat16": 2.0, "float32": 1.3},
    "step": {"bfloat16": 1.5, "float32": 1.2},
    "picture": {"bfloat16": 1.6, "float32": 1.2},
}


def kernel(
    dtype: Dtypes = "fp32,bf16",
    size: Size = 512,
    preset: Preset = SMALL,
    repeats: Repeats = 3,
    threads: Threads = None,
    device: Device = "auto",
    compiled: Compiled = False,
    before: Before = None,
    after: After = None,
) -> None:
    """Layers one by one: attention, feed-forward, and those of the decoder."""
    plan = _plan(dtype, device, threads, repeats, compiled, before, after)
    from sana_like_app.bench.parts import layers

    _run("kernel", plan, layers(preset, size, plan.device))


def block(
    dtype: Dtypes = "fp32,bf16",
    size: Size = 1024,
    preset: Preset = SMALL,
    tokens: Tokens = 40,
    repeats: Repeats = 3,
    threads: Threads = None,
    device: Device = "auto",
    compiled: Compiled = False,
    before: Before = None,
    after: After = None,
) -> None:
    """One block of a transformer, batch 2: a prompt and an empty prompt."""
    plan = _plan(dtype, device, threads, repeats, compiled, before, after)
    from sana_like_app.bench.parts import block as make

    _run("block", plan, [lambda: make(preset, size, tokens, plan.device)])


def transformer(
    dtype: Dtypes = "fp32,bf16",
    size: Size = 1024,
    preset: Preset = SMALL,
    tokens: Tokens = 40,
    repeats: Repeats = 1,
    threads: Threads = None,
    device: Device = "auto",
    compiled: Compiled = False,
    before: Before = None,
    after: After = None,
) -> None:
    """One step of a transformer with guidance, batch 2: a prompt and an empty prompt."""
    plan = _plan(dtype, device, threads, repeats, compiled, before, after)
    _run("transformer", plan, [lambda: _step(preset, size, tokens, plan)])


def autoencoder(
    dtype: Dtypes = "fp32,bf16",
    size: Size = 512,
    preset: Codec = CODEC,
    repeats: Repeats = 1,
    threads: Threads = None,
    device: Device = "auto",
    compiled: Compiled = False,
    before: Before = None,
    after: After = None,
) -> None:
    """Decoding and encoding of a picture."""
    plan = _plan(dtype, device, threads, repeats, compiled, before, after)
    _run("autoencoder", plan, _codings(preset, size, plan))


def pipeline(
    dtype: Dtypes = "fp32,bf16",
    size: Size = 512,
    preset: Preset = SMALL_512,
    codec: Codec = CODEC,
    steps: Steps = 20,
    tokens: Tokens = 40,
    repeats: Repeats = 1,
    threads: Threads = None,
    device: Device = "auto",
    before: Before = None,
    after: After = None,
) -> None:
    """A whole picture from text embeddings: guidance, sampler and decoding."""
    plan = _plan(dtype, device, threads, repeats, False, before, after)
    _run("pipeline", plan, [lambda: _picture(preset, codec, size, steps, tokens, plan)])


def table(
    dtype: Dtypes = "fp32,bf16",
    rows: Annotated[
        str, typer.Option("--rows", help="Which, by commas: decode,encode,small,large,picture.")
    ] = "decode,encode,small,large,picture",
    repeats: Repeats = 1,
    threads: Threads = None,
    device: Device = "auto",
    compiled: Compiled = False,
    before: Before = None,
    after: After = None,
) -> None:
    """The rows of docs/performance.md. Needs 16 GB of memory and, on two cores, half an hour."""
    plan = _plan(dtype, device, threads, repeats, compiled, before, after)
    decode, encode = _codings(CODEC, 512, plan)
    makers = {
        "decode": decode,
        "encode": encode,
        "small": lambda: _step(SMALL, 1024, 40, plan),
        "large": lambda: _step(LARGE, 1024, 40, plan),
        "picture": lambda: _picture(SMALL_512, CODEC, 512, 20, 40, plan),
    }
    chosen = [name.strip() for name in rows.split(",")]
    unknown = sorted(set(chosen) - set(makers))
    if unknown:
        raise ValueError(f"rows {unknown} are unknown; legal are {', '.join(makers)}")
    _run("table", plan, [makers[name] for name in chosen])


def scaling(
    dtype: Annotated[str, typer.Option("--dtype", help="One number format.")] = "bf16",
    preset: Preset = SMALL,
    layers: Annotated[int, typer.Option("--layers", min=1, help="Blocks.")] = 1,
    repeats: Repeats = 3,
    threads: Threads = None,
    device: Device = "auto",
    before: Before = None,
    after: After = None,
) -> None:
    """Time of a step against tokens, from 1024 to 65536, and the slope of the logarithms."""
    plan = _plan(dtype, device, threads, repeats, False, before, after)
    from sana_like_app.bench.report import machine
    from sana_like_app.bench.scaling import scaling as measure

    found = measure(
        preset, plan.dtypes[0], plan.device, plan.around, layers=layers, repeats=repeats
    )
    for tokens, time in zip(found["tokens"], found["seconds"], strict=True):
        typer.echo(f"{tokens:>6} tokens {time:8.3f} s")
    typer.echo(f"slope {found['slope']:.3f}; 1 is linear")
    facts = machine(plan.device) | {"dtype": dtype, "preset": preset, "layers": layers}
    typer.echo(json.dumps({"bench": "scaling", "machine": facts, **found}))


def add_commands(app: typer.Typer) -> None:
    """Register all of them."""
    for command in (kernel, block, transformer, autoencoder, pipeline, table, scaling):
        app.command(command.__name__)(command)


def _plan(
    dtype: str,
    device: str,
    threads: int | None,
    repeats: int,
    compiled: bool,
    before: str | None,
    after: str | None,
) -> Plan:
    """Checked options, before anything heavy is built."""
    from sana_like_app.cli.progress import quiet_libraries
    from sana_like_app.devices import DTYPES, choose_device

    names = [name.strip() for name in dtype.split(",")]
    unknown = sorted(set(names) - set(DTYPES))
    if unknown:
        raise ValueError(f"dtypes {unknown} are unknown; legal are {', '.join(DTYPES)}")
    place = choose_device(device)
    quiet_libraries()
    import torch

    from sana_like_app.bench.compare import Plan

    if threads is not None:
        torch.set_num_threads(threads)
    dtypes = [getattr(torch, DTYPES[name]) for name in names]
    return Plan(dtypes, place, repeats, compiled, lambda: _still(before, after))


@contextmanager
def _still(before: str | None, after: str | None) -> Iterator[None]:
    """Run the commands around a block."""
    if before:
        subprocess.run(shlex.split(before), check=True)
    try:
        yield
    finally:
        if after:
            subprocess.run(shlex.split(after), check=True)


def _run(name: str, plan: Plan, makers: Iterable[Callable[[], Work]]) -> None:
    """Measure all works one after the other; the last line of stdout is one JSON object."""
    from sana_like_app.bench.compare import compare
    from sana_like_app.bench.report import machine, print_rows

    rows = []
    for make in makers:
        for row in compare(make(), plan):
            rows.append(row)
            typer.echo(f"{row.work} {row.dtype}: {row.refused or 'measured'}", err=True)
    facts = machine(plan.device)
    print_rows(rows, facts)
    record: dict[str, Any] = {"bench": name, "machine": facts}
    typer.echo(json.dumps(record | {"rows": [row.record() for row in rows]}))
    if any(row.refused for row in rows):
        raise typer.Exit(1)


def _step(preset: str, size: int, tokens: int, plan: Plan) -> Work:
    from sana_like_app.bench import works

    work = works.transformer(preset, size, tokens, plan.device)
    return _aimed(work, "step", plan)


def _coding(preset: str, size: int, direction: str, plan: Plan) -> Work:
    from sana_like_app.bench import works

    work = works.autoencoder(preset, size, direction, plan.device)
    return _aimed(work, direction, plan)


def _codings(preset: str, size: int, plan: Plan) -> Iterator[Callable[[], Work]]:
    for direction in ("decode", "encode"):
        yield partial(_coding, preset, size, direction, plan)


def _picture(preset: str, codec: str, size: int, steps: int, tokens: int, plan: Plan) -> Work:
    from sana_like_app.bench import works

    work = works.picture(preset, codec, size, steps, tokens, plan.device)
    return _aimed(work, "picture", plan)


def _aimed(work: Work, kind: str, plan: Plan) -> Work:
    """With the aims for a processor, where it is one."""
    work.targets = TARGETS[kind] if plan.device.type == "cpu" else {}
    return work
