"""Short ways to write documents and to see what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tupletree.routes.document import DocumentError, Fault, load

STEPS = "tests.routes.document.steps"

HEAD = """\
version: 1
pipeline: shop
"""

ROUTE = """\
routes:
  convert:
    inbound: {queue: /queue/convert.in}
"""


def faults_of(source: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> list[Fault]:
    """Every fault of a document; none if it is right."""
    try:
        load(source, environ or {})
    except DocumentError as error:
        return list(error.faults)
    return []


def codes_of(source: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> list[str]:
    return [fault.code for fault in faults_of(source, environ)]


def only(source: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Fault:
    """The one fault of a document."""
    faults = faults_of(source, environ)
    assert len(faults) == 1, "\n".join(map(str, faults))
    return faults[0]


def written(folder: Path, **files: str) -> Path:
    """Write `name.yaml` for each name, and return the path of the first."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(files))}.yaml"
