"""What executions keep of a document: its text, and all that it was filled with from elsewhere.

Pure. Secrets are named, and not kept: the ledger is no place for them. What is a secret: values below keys that are
named like one, settings whose type says so, logins of URLs, and parts `name=value` that are named like one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel, SecretStr

from tupletree.queues.urls import HIDDEN, is_secret, without_secrets
from tupletree.routes.document.nodes import ListNode, Node, ScalarNode

_NOT_KEPT = "a secret, not kept"
_LEAST_HIDDEN = 4


def frozen(sources: Mapping[str, str], root: Node, environ: Mapping[str, str], settings: Iterable[object] = ()) -> str:
    """The copy.

    Args:
        sources: file → its text, the document's first; where there are several, each comes after a line with its name.
        root: the document with all that it includes.
        environ: that `${NAME}` was taken from.
        settings: of adapters, typed.

    Returns:
        The text; then, as comments, a line for each variable with its value as JSON, and for each file of a `!file`
        with its text as JSON.
    """
    text = "\n".join(f"# file: {file}\n{text}" for file, text in sources.items())
    if len(sources) == 1:
        text = next(iter(sources.values()))
    typed = {*_typed_secrets(list(settings))}
    values = [*_values(root)]
    # As the document has them, and as they are meant.
    written = [node for node, hides in values if hides and not node.variables and not node.file and node.raw]
    text = _without(text, {*typed, *(form for node in written for form in (node.raw, str(node.value)))})
    variables: dict[str, str] = {}
    files: dict[str, str] = {}
    for node, hides in values:
        for name in node.variables:
            value = environ.get(name)
            if hides or is_secret(name) or (value and (without_secrets(value) != value or value in typed)):
                variables[name] = _NOT_KEPT
            elif name not in variables:
                variables[name] = "not set" if value is None else json.dumps(value, ensure_ascii=False)
        if node.file:
            hides = hides or is_secret(node.file)
            kept = without_secrets(str(node.value), *typed)
            files[node.file] = _NOT_KEPT if hides else json.dumps(kept, ensure_ascii=False)
    lines = [f"# ${{{name}}}: {value}" for name, value in sorted(variables.items())]
    lines += [f"# !file {file}: {value}" for file, value in sorted(files.items())]
    if not lines:
        return text
    return text.rstrip("\n") + "\n" + "\n".join(lines) + "\n"


def _without(text: str, secrets: Iterable[str]) -> str:
    """The text of documents, without what is secret in it."""
    lines = {line.strip() for one in secrets for line in one.splitlines()}
    known = {line for line in lines if len(line) >= _LEAST_HIDDEN}
    short = lines - known - {""}
    kept = []
    for line in without_secrets(text, *known).split("\n"):
        key, colon, value = line.partition(":")
        is_short = value.strip().strip("'\"") in short and is_secret(key)
        kept.append(f"{key}{colon} {HIDDEN}" if is_short else line)
    return "\n".join(kept)


def _typed_secrets(value: object) -> Iterator[str]:
    """Values of settings whose type says that they are secret."""
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _typed_secrets(getattr(value, name))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _typed_secrets(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _typed_secrets(one)


def _values(node: Node, *, hidden: bool = False) -> Iterator[tuple[ScalarNode, bool]]:
    """Every value, and whether a key above it is named like a secret."""
    if isinstance(node, ScalarNode):
        yield node, hidden
    elif isinstance(node, ListNode):
        for item in node.items:
            yield from _values(item, hidden=hidden)
    else:
        for key, entry in node.entries.items():
            yield from _values(entry.node, hidden=hidden or is_secret(key))
