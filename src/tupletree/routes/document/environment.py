"""`${NAME}` and `${NAME:-default}` in values: what the environment says there.

Pure: the environment is a mapping. Only values are looked at, never comments or keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<inner>[^{}]*)(?P<end>\}?)")
_INNER = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<rest>:-(?P<default>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Substituted:
    """A text with its references replaced.

    Attributes:
        text: the result.
        variables: names that it refers to.
        missing: of these, those that are not set and have no default.
        malformed: references that are none, as they are written.
    """

    text: str
    variables: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    malformed: tuple[str, ...] = ()


def substitute(text: str, environ: Mapping[str, str]) -> Substituted:
    """Replace `${NAME}` by the variable's value, `${NAME:-default}` by it or, if unset or empty, the default.

    `$${` stands for `${`. A `$` alone stays.

    >>> substitute("${HOST:-localhost}:80 $${x}", {}).text
    'localhost:80 ${x}'
    """
    if "${" not in text:
        return Substituted(text)
    variables: list[str] = []
    missing: list[str] = []
    malformed: list[str] = []

    def value_of(found: re.Match[str]) -> str:
        if found["inner"] is None:
            return "${"
        inner = _INNER.fullmatch(found["inner"]) if found["end"] else None
        if inner is None:
            malformed.append(found[0])
            return ""
        name, default = inner["name"], inner["default"]
        variables.append(name)
        value = environ.get(name)
        if default is not None:
            return value or default
        if value is None:
            missing.append(name)
        return value or ""

    replaced = _REFERENCE.sub(value_of, text)
    return Substituted(replaced, tuple(variables), tuple(missing), tuple(malformed))
