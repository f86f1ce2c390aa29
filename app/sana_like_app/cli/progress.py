"""Progress on stderr, so that stdout holds results only."""

from __future__ import annotations

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
    """Switch off the libraries' own bars for reading weights; ours tell what takes time."""
    import diffusers
    import transformers

    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
