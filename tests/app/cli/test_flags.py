"""The public options, frozen: a change to the command line is made here too, on purpose."""

from __future__ import annotations

from typing import Any

import typer.main

from sana_like_app.cli.main import app

COMPARING = "--dtype --device --threads --repeats --before --after"
FLAGS = {
    "": "--version --debug",
    "generate": (
        "--prompts-file --model --size --width --height --steps --guidance-scale "
        "--guidance-interval --pag-scale --negative-prompt --scheduler --seed --count "
        "--image --strength --mask --control --controlnet --control-scale --lora "
        "--device --dtype --offload --batch-size --cache-threshold "
        "--guidance-passes --quantize --attention-backend --compile --cuda-graphs --output "
        "--contact-sheet --preview --no-metadata"
    ),
    "rerun": "--output --force --device --dtype --offload --attention-backend --no-metadata",
    "inspect": "",
    "convert": "--image-size --preset --dtype",
    "doctor": "--picture",
    "licenses": "",
    "zoo list": "",
    "zoo show": "",
    "zoo fetch": "--force",
    "train run": "--resume --runs --print-config",
    "train data": "--output",
    "train evaluate": "--pack --output --model --limit --device",
    "train export": "--which --int8 --runs",
    "train card": "--report --which --runs",
    "video": (
        "--model --size --frames --seconds --steps --guidance-scale --guidance-interval "
        "--stg-scale --negative-prompt --scheduler --seed --image --image-fit --lora --resume "
        "--save-state --format --device --dtype --offload --output --no-metadata"
    ),
    "bench stream": "--model --frames --side --output",
    "bench kernel": f"--preset --size --compiled {COMPARING}",
    "bench block": f"--preset --size --tokens --compiled {COMPARING}",
    "bench transformer": f"--preset --size --tokens --compiled {COMPARING}",
    "bench autoencoder": f"--autoencoder --size --compiled {COMPARING}",
    "bench pipeline": f"--preset --autoencoder --size --steps --tokens {COMPARING}",
    "bench table": f"--rows --compiled {COMPARING}",
    "bench scaling": f"--preset --layers {COMPARING}",
}


def walk(command: Any, name: str = "") -> dict[str, set[str]]:
    options = {
        option
        for parameter in command.params
        if parameter.param_type_name == "option"
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    children = getattr(command, "commands", {})
    found = {} if children and name else {name: options - {"--help", "-h"}}
    for child, sub in children.items():
        found |= walk(sub, f"{name} {child}".strip())
    return found


def test_options_are_those_listed() -> None:
    present = walk(typer.main.get_command(app))
    assert present == {name: set(flags.split()) for name, flags in FLAGS.items()}
