"""The version of the distribution; `pyproject.toml` carries the same one."""

__version__ = "0.1.0"
