"""What the tree promises: roots without `__init__`, short files, no traces of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = {
    "kernels": "sana_like_kernels",
    "pipelines": "sana_like_pipelines",
    "train": "sana_like_train",
    "app": "sana_like_app",
}
LINE_LIMIT = 500
FILE_LIMIT = 500_000  # bytes; more only for weights of the zoo, which have a limit of their own
ZOO_LIMIT = 40_000_000

# Every host that the files may point at. A link elsewhere is either a slip or belongs here.
PUBLIC_HOSTS = {
    "arxiv.org",
    "creativecommons.org",
    "git-lfs",  # the first bytes of a Git-LFS pointer
    "git-lfs.github.com",
    "github.com",
    "huggingface.co",
    "localhost",
    "127.0.0.1",
    "www.apache.org",
    "www.unicode.org",
    "www.w3.org",
}
# Put together from parts, so that this file does not contain what it forbids.
FORBIDDEN = [
    r"(?<![\w.~])/" + r"work/",
    r"(?<![\w.~])/" + r"tmp/",
    r"(?<![\w.~])/" + r"root/",
    r"(?<![\w.~])/" + r"home/\w",
    r"\b" + "TO" + r"DO\b",
    r"\b" + "FIX" + r"ME\b",
    r"\b([Ii]ssue|[Tt]ask) " + r"#?\d",
    r"^\s*# ?[-=*#]{5,}",
]


def tracked_files() -> list[Path]:
    """Files under version control."""
    try:
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def tracked_text_files() -> list[Path]:
    """Those that are text."""
    suffixes = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ""}
    return [path for path in tracked_files() if path.suffix in suffixes]


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_source_root_is_no_package(folder: str) -> None:
    """`kernels`, `train`, `app` and `pipelines` are import names of other projects."""
    assert not (ROOT / folder / "__init__.py").exists()
    assert (ROOT / folder / SOURCE_ROOTS[folder] / "__init__.py").is_file()


def test_packages_are_typed() -> None:
    for package in [ROOT / "sana_like", *(ROOT / a / b for a, b in SOURCE_ROOTS.items())]:
        assert (package / "py.typed").is_file(), package


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked_text_files()
        if path.suffix == ".py" and (count := path.read_text("utf-8").count("\n")) > LINE_LIMIT
    }
    assert not long, f"split by concern: {long}"


def test_no_large_files() -> None:
    zoo = ROOT / "sana_like" / "zoo"
    weights = [path for path in tracked_files() if zoo in path.parents]
    assert sum(path.stat().st_size for path in weights) <= ZOO_LIMIT
    large = {
        str(path.relative_to(ROOT)): path.stat().st_size
        for path in tracked_files()
        if path.stat().st_size > FILE_LIMIT and path not in weights
    }
    assert not large, large


def test_readme_states_the_terms() -> None:
    from sana_like_app.terms import TERMS

    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    for subject, statement in TERMS.items():
        assert f"**{subject}.** {statement}" in readme


def test_no_forbidden_words() -> None:
    pattern = re.compile("|".join(f"(?:{part})" for part in FORBIDDEN), re.M)
    found = []
    for path in tracked_text_files():
        if path.name == "LICENSE" or path.suffix == ".json":
            continue
        text = path.read_text("utf-8")
        found += [f"{path.relative_to(ROOT)}: {hit.group(0)!r}" for hit in pattern.finditer(text)]
    assert not found, "\n".join(found)


def test_links_go_to_public_hosts() -> None:
    link = re.compile(r"https?://([^/\s\"'`)>:\]}]+)")
    strange = []
    for path in tracked_text_files():
        for host in link.findall(path.read_text("utf-8")):
            if host not in PUBLIC_HOSTS and not host.endswith((".example", ".invalid")):
                strange.append(f"{path.relative_to(ROOT)}: {host}")
    assert not strange, "\n".join(strange)


def test_version_is_one() -> None:
    from sana_like.version import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == __version__
    assert f"[{__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_licence_and_notice_ship() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name in project["license-files"]:
        assert (ROOT / name).stat().st_size > 0
    notice = (ROOT / "NOTICE").read_text("utf-8")
    for credit in ("Microsoft", "Google", "Twitter", "CC-BY 4.0", "Unicode", "SmolLM2"):
        assert credit in notice


def unsafe_calls(source: str) -> list[str]:
    """Calls that would run code from a file or from a hub."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        pickled = name == "torch.load" and given.get("weights_only") != "True"
        if pickled or name in {"pickle.load", "pickle.loads", "eval", "exec"}:
            found.append(f"line {node.lineno}: {name}")
        if given.get("trust_remote_code", "False") != "False":
            found.append(f"line {node.lineno}: trust_remote_code")
    return found


def test_only_safe_loading() -> None:
    """Pickle is read by the converter's own process alone, and no code is fetched to be run."""
    for path in tracked_files():
        where = path.relative_to(ROOT)
        if path.suffix == ".py" and where.parts[0] != "tests":
            assert not unsafe_calls(path.read_text("utf-8")), where
    assert unsafe_calls("torch.load(f)") and unsafe_calls("x.y(f, trust_remote_code=True)")
