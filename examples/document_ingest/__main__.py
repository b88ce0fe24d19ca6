"""Documents into an index, and the index searched: `python -m examples.document_ingest --help`."""

import argparse
import os
import sys
from pathlib import Path

from examples.document_ingest.documents import make_documents
from examples.document_ingest.search import PIPELINE, search
from tupletree.routes import Pipeline, PipelineRun
from tupletree.routes.ledger import Completed


def ingest(documents: Path, index: Path, home: Path | None, runtime: str) -> int:
    """Ingest every document, and say of each when it is completely indexed, or why it is not."""
    if not documents.exists():
        make_documents(documents)
    environ = {**os.environ, "DOCUMENTS": str(documents.absolute()), "INDEX": f"sqlite:///{index.absolute()}"}
    pipeline = Pipeline.load(PIPELINE, home=home, environ=environ)
    names = sorted(path.name for path in documents.iterdir() if path.is_file())
    with pipeline.run(runtime=runtime) as run:
        executions = {name: run.execute({"path": name}, route="convert") for name in names}
        of_execution = {execution.id: name for name, execution in executions.items()}
        run.on_completed(lambda completed: say(run, completed, of_execution.get(completed.execution, "an earlier one")))
        ended = [execution.wait() for execution in executions.values()]
    failed = sum(1 for execution in ended if execution.dead)
    print(f"{len(ended) - failed} of {len(ended)} documents are indexed in {index}")
    return 3 if failed else 0


def say(run: PipelineRun, completed: Completed, name: str) -> None:
    """One line for a document that is done with."""
    took_s = completed.ended_s - completed.created_s
    if not completed.dead:
        print(f"{name}: indexed, {completed.total} messages, {took_s:.1f} s", flush=True)
        return
    for message in run.services.ledger.messages(completed.execution, state="dead"):
        reason = message.reason.partition("\n")[0]
        print(
            f"{name}: not indexed: {message.adapter}: {reason}. The whole story: tupletree why {message.id}", flush=True
        )


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.document_ingest", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    ingesting = commands.add_parser("ingest", help="index the documents of a folder")
    ingesting.add_argument("documents", nargs="?", default="documents", type=Path, help="default: Python's topics")
    ingesting.add_argument("--runtime", choices=["local", "spark"], default="local")
    ingesting.add_argument("--home", type=Path, help="folder of the queues, the ledger and the lineage")
    searching = commands.add_parser("search", help="find the documents that are nearest to a question")
    searching.add_argument("question", nargs="+")
    for one in (ingesting, searching):
        one.add_argument("--index", default="index.db", type=Path)
    given = parser.parse_args()
    if given.command == "ingest":
        return ingest(given.documents, given.index, given.home, given.runtime)
    for found in search(str(given.index), " ".join(given.question)):
        print(f"{found.score:.2f}  {found.document}  {found.title}\n      {' '.join(found.text.split())[:100]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
