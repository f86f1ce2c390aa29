"""Progress on stderr, so that stdout holds results only."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(subject: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that reports `(done, total)`; hidden where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(subject, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def frame_counter(total: int) -> Iterator[Callable[[int], None]]:
    """A bar for frames as they are written, with how many a second; hidden like `counting`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("frames"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:.1f}/s"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("frames", total=total, speed=0.0)
        began = time.perf_counter()

        def tell(done: int) -> None:
            seconds = time.perf_counter() - began
            bar.update(task, completed=done, speed=done / max(seconds, 1e-9))

        yield tell


@contextmanager
def first_interrupt() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into an answer: the function says whether there was one.

    A second one is a `KeyboardInterrupt` as ever. Outside of the main thread nothing changes.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def once(number: int, frame: object) -> None:  # noqa: ARG001
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, once)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def quiet_libraries() -> None:
    """Import the model libraries without their talk, and keep them to errors afterwards.

    What they log on import is about parts that are not used here, such as extensions of torchao
    built for another torch; their bars for reading weights would mix with ours.
    """
    logging.disable(logging.WARNING)
    try:
        import diffusers
        import transformers

        import sana_like_pipelines.lifecycle  # noqa: F401 - this is what pulls in most of them
    finally:
        logging.disable(logging.NOTSET)
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    logging.getLogger("torch").setLevel(logging.ERROR)
