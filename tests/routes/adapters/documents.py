"""The tables of settings in docs/routes_adapters.md, made of the adapters' own settings classes.

`python -m tests.routes.adapters.documents` writes them anew.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from tupletree.routes.adapters import find
from tupletree.routes.adapters.conditions import Condition

PAGE = Path(__file__).resolve().parents[3] / "docs" / "routes_adapters.md"

_PLACE = re.compile(r"(<!-- settings of (\w+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)


def meanings(model: type[Any]) -> dict[str, str]:
    """Field → what the class's docstring says of it."""
    text = inspect.cleandoc(model.__doc__ or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        head = re.match(r" {4}([a-z_, ]+): (.*)", line)
        if head:
            names = head[1].split(", ")
            found |= dict.fromkeys(names, head[2])
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def kind(hint: Any) -> str:
    """A type as a reader of YAML knows it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return kind(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(kind(one) for one in arguments if one is not type(None))
    plain = {str: "text", bool: "true or false", int: "whole number", float: "number", SecretStr: "text"}
    if hint in plain:
        return plain[hint]
    if hint is Condition:
        return "condition"
    if origin is not None:
        inner = kind(arguments[-1])
        return f"mapping to {inner}" if len(arguments) == 2 else f"list of {inner}"
    return "mapping"


def default(field: Any) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or (not value and not isinstance(value, bool | int | float)):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else f"`{value}`"


def table(name: str) -> str:
    model = find(name).Config
    rows = ["| Setting | Type | Default | Meaning |", "|---|---|---|---|"]

    def add(model: type[Any], prefix: str) -> None:
        told = meanings(model)
        for field_name, field in model.model_fields.items():
            default_text = "`0o644`" if (name, field_name) == ("write_file", "mode") else default(field)
            meaning = told[field_name].removesuffix(".").replace("|", r"\|")
            rows.append(f"| `{prefix}{field_name}` | {kind(field.annotation)} | {default_text} | {meaning} |")
            inner = typing.get_args(field.annotation)
            if inner and isinstance(inner[0], type) and inner[0].__name__ == "Case":
                add(inner[0], f"{prefix}{field_name}[].")

    add(model, "")
    return "\n".join(rows) + "\n"


def with_tables(text: str) -> str:
    return _PLACE.sub(lambda found: found[1] + table(found[2]) + found[3], text)


def described(text: str) -> set[str]:
    return {found[2] for found in _PLACE.finditer(text)}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
