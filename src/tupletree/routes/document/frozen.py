"""What executions keep of a document: its text, and all that it was filled with from elsewhere.

Pure. Secrets are named, and not kept: the ledger is no place for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from tupletree.queues.urls import is_secret
from tupletree.routes.document.nodes import ListNode, MappingNode, Node, ScalarNode

__all__ = ["frozen"]

_NOT_KEPT = "a secret, not kept"
_LOGIN = re.compile(r"://[^/@\s]*@")


def frozen(sources: Mapping[str, str], root: Node, environ: Mapping[str, str]) -> str:
    """The copy.

    Args:
        sources: file → its text, the document's first; where there are several, each comes after a line with its name.
        root: the document with all that it includes.
        environ: that `${NAME}` was taken from.

    Returns:
        The text; then, as comments, a line for each variable with its value as JSON, and for each file of a `!file`
        with its text as JSON.
    """
    text = "\n".join(f"# file: {file}\n{text}" for file, text in sources.items())
    if len(sources) == 1:
        text = next(iter(sources.values()))
    variables: dict[str, str] = {}
    files: dict[str, str] = {}
    for node, hides in _filled(root, hidden=False):
        for name in node.variables:
            value = environ.get(name)
            if hides or is_secret(name) or (value and _LOGIN.search(value)):
                variables[name] = _NOT_KEPT
            elif name not in variables:
                variables[name] = "not set" if value is None else json.dumps(value, ensure_ascii=False)
        if node.file:
            hides = hides or is_secret(node.file)
            files[node.file] = _NOT_KEPT if hides else json.dumps(node.value, ensure_ascii=False)
    lines = [f"# ${{{name}}}: {value}" for name, value in sorted(variables.items())]
    lines += [f"# !file {file}: {value}" for file, value in sorted(files.items())]
    if not lines:
        return text
    return text.rstrip("\n") + "\n" + "\n".join(lines) + "\n"


def _filled(node: Node, *, hidden: bool) -> Iterator[tuple[ScalarNode, bool]]:
    """The values that are filled from elsewhere, and whether their keys say that they are secret."""
    if isinstance(node, ScalarNode):
        if node.variables or node.file:
            yield node, hidden
    elif isinstance(node, ListNode):
        for item in node.items:
            yield from _filled(item, hidden=hidden)
    elif isinstance(node, MappingNode):
        for key, entry in node.entries.items():
            yield from _filled(entry.node, hidden=hidden or is_secret(key))
