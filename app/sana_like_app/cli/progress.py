"""Progress on stderr, so that stdout holds results only."""

from __future__ import annotations

import logging
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
