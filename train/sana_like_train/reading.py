"""Reads recipes: YAML by name or path, dotted overrides, errors that name the closest key."""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from sana_like_train.config import ConfigError, Recipe

RECIPES = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def resolve(recipe: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """Reads a recipe by name or path, applies `section.key=value` overrides, and checks it.

    Raises:
        ConfigError: no such recipe, not YAML, an unknown key (with the closest legal one), or a
            value outside its range.
    """
    raw = _read(recipe)
    for override in overrides:
        _apply(raw, override)
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(_explain(error, str(recipe))) from None


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML; `resolve` of it gives the same recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """Safe YAML without duplicate keys and aliases, and with `1e-3` read as a number."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ConfigError("aliases (*name) are not allowed in a recipe; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(node.value):
            names = [str(key.value) for key, _ in node.value]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError(f"key given twice in a recipe: {', '.join(twice)}")
        return mapping


def _parse(text: str) -> Any:
    value = yaml.load(text, Loader=_Loader)
    return _numbers(value)


def _numbers(value: Any) -> Any:
    """YAML 1.1 reads `1e-3` as text; people who write recipes mean a number."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, str) and "e" in value.lower():
        try:
            number = float(value)
        except ValueError:
            return value
        return number if math.isfinite(number) else value
    return value


def _read(recipe: str | Path) -> dict[str, Any]:
    path = Path(recipe)
    if not path.suffix and path.name == str(recipe):
        path = RECIPES / f"{recipe}.yaml"
        if not path.exists():
            known = recipe_names()
            raise ConfigError(
                f"no recipe named {str(recipe)!r}{_closest(str(recipe), known)}; "
                f"known: {', '.join(known)}; or give the path of a .yaml file"
            )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from None
    try:
        raw = _parse(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds {type(raw).__name__}, a recipe is a mapping of sections")
    return raw


def _apply(raw: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r} is not of the form section.key=value")
    try:
        value = _parse(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"value of the override {override!r} is not YAML: {error}") from None
    node = raw
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if child is None:
            child = node[part] = {}
        if not isinstance(child, dict):
            raise ConfigError(f"override {override!r}: {part} is a value, not a section")
        node = child
    node[parts[-1]] = value


def _closest(given: str, legal: list[str]) -> str:
    match = difflib.get_close_matches(given, legal, n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _legal_keys(location: tuple[int | str, ...]) -> list[str]:
    """Keys allowed at a location of a validation error."""
    section: type[BaseModel] = Recipe
    for part in location:
        field = section.model_fields.get(str(part))
        annotation = field.annotation if field else None
        models = [o for o in (annotation, *get_args(annotation)) if _is_section(o)]
        if field is None:  # the tag of a union names the section that was tried
            models = [m for m in _tasks() if m.model_fields["kind"].default == part]
        if not models:
            return []
        section = models[0]
    return list(section.model_fields)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _tasks() -> list[type[BaseModel]]:
    return list(get_args(Recipe.model_fields["task"].annotation))


def _explain(error: ValidationError, source: str) -> str:
    lines = []
    for item in error.errors(include_url=False):
        location = item["loc"]
        name = ".".join(str(part) for part in location)
        if item["type"] == "extra_forbidden":
            legal = _legal_keys(location[:-1])
            hint = _closest(str(location[-1]), legal)
            lines.append(f"{name}: unknown key{hint}; legal: {', '.join(legal)}")
        else:
            lines.append(f"{name}: {item['msg']} (given {item.get('input')!r:.80})")
    return f"recipe {source}: " + "; ".join(lines)
