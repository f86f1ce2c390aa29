"""`python -m sana_like_train RECIPE [key=value ...]`: the entry for `accelerate launch`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from sana_like_train.reading import dump, resolve


def main(arguments: list[str] | None = None) -> int:
    """Trains a recipe; returns the exit code (130 after a signal)."""
    parser = argparse.ArgumentParser(prog="python -m sana_like_train", description=main.__doc__)
    parser.add_argument("recipe", help="name of a recipe, or path of a YAML file")
    parser.add_argument("overrides", nargs="*", help="section.key=value")
    parser.add_argument("--resume", action="store_true", help="continue the run of that name")
    parser.add_argument("--runs", type=Path, help="folder of all runs")
    parser.add_argument("--print-config", action="store_true", help="print the resolved recipe")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        if options.print_config:
            sys.stdout.write(dump(resolve(options.recipe, options.overrides)))
            return 0
        from sana_like_train.running import run

        result = run(options.recipe, options.overrides, resume=options.resume, runs=options.runs)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 130 if result.status == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(main())
