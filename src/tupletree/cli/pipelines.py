"""Where a pipeline's ledger and lineage are, for commands that ask them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tupletree.cli.parameters import url_from
from tupletree.errors import ConfigError, RuntimeUnavailableError
from tupletree.queues.urls import without_secrets

if TYPE_CHECKING:
    from tupletree.routes.document.spec import PipelineSpec

HOME = Path(".tupletree") / "routes"
QUEUE_FILE = "pipeline.db"

PipelineName = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        metavar="PIPELINE",
        help="Its YAML file, or the name of one that was run here. \\[default: all that were]",
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Of the lineage: a database, or parquet:FOLDER; @FILE and '$VARIABLE' hold one. Not with --pipeline.",
    ),
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger", metavar="URL", help="Of the ledger's database; @FILE and '$VARIABLE' hold one. Not with --pipeline."
    ),
]


@dataclass(frozen=True)
class Places:
    """Where a pipeline keeps what is known of its messages.

    Attributes:
        name: of the pipeline; empty: not known.
        ledger: URL; empty: not known.
        lineage: URL; empty: not known, or none is written.
        queue_file: URL of its embedded queues; empty: not known.
        spec: what its document says, where it was named.
    """

    name: str
    ledger: str
    lineage: str
    queue_file: str = ""
    spec: PipelineSpec | None = None


def require_packages() -> None:
    """Every command of routes calls it first: what is missing is named, and how to get it.

    Raises:
        RuntimeUnavailableError: a package of the extra `routes` is not installed.
    """
    missing = [name for name in ("pydantic", "yaml", "sqlalchemy") if find_spec(name) is None]
    if missing:
        raise RuntimeUnavailableError(
            "the packages of routes are not installed",
            got=f"no {', '.join(missing)}",
            next_step="pip install 'tupletree[routes]'",
        )


def find_places(pipeline: str | None = None, *, store: str | None = None, ledger: str | None = None) -> list[Places]:
    """The pipelines that a command is about: the named one, or all that were run below the current folder.

    Raises:
        ConfigError: there is none.
        RuntimeUnavailableError: see `require_packages`.
    """
    require_packages()
    if store or ledger:
        from tupletree.routes.lineage import store_beside

        ledger, store = url_from(ledger or ""), url_from(store or "")
        return [Places("", ledger, store or store_beside(ledger))]
    if pipeline is not None and (pipeline.endswith((".yaml", ".yml")) or Path(pipeline).is_file()):
        return [_of_document(pipeline)]
    known = [*_run_here()]
    found = [one for one in known if pipeline in {None, one.name}]
    if not found:
        raise ConfigError(
            "no pipeline was run here" if pipeline is None else "no such pipeline was run here",
            where=str(HOME.absolute()),
            got=pipeline or "",
            expected=", ".join(one.name for one in known),
            next_step="go to the folder where it was run, or name its file: --pipeline FILE.yaml",
        )
    return found


def were_run_here() -> bool:
    """Whether a pipeline was run below the current folder."""
    return any(HOME.glob(f"*/{QUEUE_FILE}"))


def existing(url: str) -> str:
    """The URL of a ledger that is there: asking must not make an empty file.

    Raises:
        ConfigError: it names a SQLite file that does not exist.
    """
    scheme, mark, path = url.partition(":///")
    if mark and scheme.startswith("sqlite") and not Path(path.partition("?")[0]).exists():
        raise ConfigError(
            "there is no ledger",
            where=without_secrets(url),
            got="no such file",
            next_step="check the path, or run the pipeline first",
        )
    return url


def _of_document(path: str) -> Places:
    from tupletree.routes.document import load
    from tupletree.routes.lineage import Level, store_beside

    spec = load(path)
    ledger = spec.ledger or spec.queue_file or _queue_file(HOME / spec.name)
    is_off = Level.parse(spec.lineage.level).is_off
    lineage = "" if is_off else spec.lineage.store or store_beside(ledger)
    return Places(spec.name, ledger, lineage, spec.queue_file or _queue_file(HOME / spec.name), spec)


def _run_here() -> Iterator[Places]:
    from tupletree.routes.lineage import store_beside

    for path in sorted(HOME.glob(f"*/{QUEUE_FILE}")):
        ledger = _queue_file(path.parent)
        yield Places(path.parent.name, ledger, store_beside(ledger), ledger)


def _queue_file(home: Path) -> str:
    return f"sqlite:///{(home / QUEUE_FILE).absolute()}"
