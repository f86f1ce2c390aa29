"""Names that a package offers at its top and imports when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, table: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make the module hooks of a package whose names live in its sub-modules.

    Args:
        package: the `__name__` of the package.
        table: public name to the sub-module that defines it, relative to `package`.

    Returns:
        `__getattr__`, `__dir__` and `__all__` for the package (PEP 562).
    """
    names = sorted(table)

    def load(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{table[name]}"), name)

    return load, lambda: names, names
