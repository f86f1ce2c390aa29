"""`sana-like train`: recipes, data, evaluation, export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Train models: run a recipe, build data, evaluate, export weights.")

INTERRUPTED = 130
RunsFolder = Annotated[Path | None, typer.Option("--runs", help="Folder of all runs.")]


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn a missing library into one line that says which extra brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library.startswith("sana_like"):
            raise
        raise ImportError(
            f"this needs {library}, which comes with: pip install 'sana-like[{name}]'"
        ) from error


@app.command("run")
def run_recipe(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe, or path of a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run.")] = False,
    runs: RunsFolder = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved recipe and stop.")
    ] = False,
) -> None:
    """Train a recipe. Ctrl-C finishes the step, writes a checkpoint and ends with code 130."""
    with extra("train"):
        from sana_like_train.reading import dump, resolve

        if print_config:
            typer.echo(dump(resolve(recipe, overrides or [])), nl=False)
            return
        from sana_like_train.running import run

        _log_to_stderr()
        result = run(recipe, overrides or [], resume=resume, runs=runs)
    typer.echo(str(result.folder))
    if result.status == "interrupted":
        raise typer.Exit(INTERRUPTED)


@app.command("data")
def build_data(
    pack: Annotated[str, typer.Argument(help="Which pack to build: emoji or emoji-clips.")],
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write; else in the data folder.")
    ] = None,
) -> None:
    """Build a pack of captioned pictures or clips from the npm packages that hold them."""
    from sana_like_app.cli.progress import counting

    with extra("train"):
        from sana_like_train.data.packs import build_pack

        with counting("pictures") as advance:
            path = build_pack(
                pack, output, report=lambda line: typer.echo(line, err=True), progress=advance
            )
    typer.echo(str(path))


@app.command("evaluate")
def evaluate(
    name: Annotated[
        str,
        typer.Argument(
            help="emoji, autoencoder, video-autoencoder, pack, motion-rules, emoji-video or "
            "emoji-long."
        ),
    ],
    pack: Annotated[Path | None, typer.Option("--pack", help="The emoji pack.")] = None,
    output: Annotated[Path, typer.Option("--output", help="Folder for reports.")] = Path("outputs"),
    model: Annotated[
        str | None, typer.Option("--model", help="Embedded name or folder; else the embedded one.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Judge only so many pictures of each list.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, mps.")] = "auto",
) -> None:
    """Score a model on the committed split and prompt list; the report goes to OUTPUT as JSON."""
    from sana_like_app.cli.progress import counting, quiet_libraries
    from sana_like_app.devices import choose_device

    quiet_libraries()
    place = str(choose_device(device))
    with extra("train"):
        from sana_like_train.data.packs import find_pack

        data = find_pack() if pack is None else pack
    with extra("eval"):
        from sana_like_train.evaluate import run

        with counting("pictures") as advance:
            run(
                name,
                pack=data,
                output=output,
                model=model,
                limit=limit,
                device=place,
                progress=advance,
            )
    typer.echo(str(output / f"{name}.json"))


@app.command("export")
def export_weights(
    run: Annotated[str, typer.Argument(help="Name of a run, or its folder.")],
    folder: Annotated[Path, typer.Argument(help="Model folder to write.")],
    which: Annotated[str, typer.Option("--which", help="best or latest.")] = "best",
    int8: Annotated[bool, typer.Option("--int8", help="Store weights as int8.")] = False,
    runs: RunsFolder = None,
) -> None:
    """Write the averaged weights of a run's checkpoint as a model folder."""
    if which not in {"best", "latest"}:
        raise ValueError(f"--which {which!r} is unknown; legal are best and latest")
    with extra("train"):
        from sana_like_train.running import export

        typer.echo(str(export(run, folder, which=which, runs=runs, int8=int8)))


@app.command("card")
def write_model_card(
    run: Annotated[str, typer.Argument(help="Name of a run, or its folder.")],
    folder: Annotated[Path, typer.Argument(help="The model folder exported from it.")],
    report: Annotated[Path, typer.Option("--report", help="JSON of this model's evaluation.")],
    which: Annotated[str, typer.Option("--which", help="best or latest.")] = "latest",
    runs: RunsFolder = None,
) -> None:
    """Write the card of an exported model from its run and its evaluation."""
    with extra("train"):
        from sana_like_train.cards import write_card
        from sana_like_train.running import runs_folder

        base = Path(run) if Path(run).is_dir() else (runs or runs_folder()) / run
        typer.echo(str(write_card(folder, base, report, which=which)))


def _log_to_stderr() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
