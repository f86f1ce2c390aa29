"""What the documents say exists: links, tests they name, commands and options, examples."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Made with the embedded model, and there once that is.
SHEET = ROOT / "docs" / "images" / "emoji-sheet.png"


def commands(text: str) -> list[str]:
    """Lines of code blocks, and words in backticks, that call the program."""
    blocks = re.findall(r"^ {4}(?:\S*[/\\])?(sana-like .*)$", text, re.MULTILINE)
    return blocks + re.findall(r"`(sana-like [^`]+)`", text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text("utf-8")):
        if "://" in link:
            continue
        target = (document.parent / link).resolve()
        if target == SHEET and not (ROOT / "sana_like" / "zoo" / "emoji").exists():
            continue
        assert target.exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(document: Path) -> None:
    from sana_like_app.cli.main import app

    root = typer.main.get_command(app)
    for line in commands(document.read_text("utf-8")):
        words = shlex.split(line.replace("\\", "/"), comments=True)[1:]
        command, options = root, {"--help", "--version", "--debug"}
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options |= {option for parameter in command.params for option in parameter.opts}
        named = "COMMAND" in words or "|" in line or words[:1] == ["--help"]
        assert named or not hasattr(command, "commands") or not words, f"no such command: {line}"
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in options, f"{line}: {word}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_that_are_named_exist(document: Path) -> None:
    for name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", document.read_text("utf-8")):
        path, function = ROOT / name[0], name[1]
        assert path.is_file(), name
        assert not function or f"def {function}(" in path.read_text("utf-8"), name


@pytest.mark.parametrize("source", [*EXAMPLES, ROOT / "README.md"], ids=lambda path: path.name)
def test_examples_use_what_there_is(source: Path) -> None:
    text = source.read_text("utf-8")
    if source.suffix == ".md":
        blocks = re.findall(r"(?:^ {4}.*\n|^\n)+", text, re.MULTILINE)
        text = "\n".join(
            "".join(line[4:] or "\n" for line in block.splitlines(keepends=True))
            for block in blocks
            if "import" in block
        )
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        module = importlib.import_module(str(node.module))
        for name in node.names:
            assert hasattr(module, name.name), f"{node.module}.{name.name}"
