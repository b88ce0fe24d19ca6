"""`tupletree routes run`: a pipeline runs until its execution has ended, or until it is interrupted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tupletree.cli.arguments import Option, RuntimeName
from tupletree.cli.pipelines import require_packages
from tupletree.cli.routes.documents import app
from tupletree.cli.run import EXIT_DEAD_LETTERS, EXIT_INTERRUPTED, Interruption, SummaryFormat
from tupletree.cli.summary import print_result, real_stdout
from tupletree.errors import ConfigError
from tupletree.escaping import escape
from tupletree.texts import counted

if TYPE_CHECKING:
    from tupletree.routes.ledger.values import Execution
    from tupletree.routes.pipeline import ExecutionHandle, PipelineRun

POLL_S = 0.25


@app.command("run")
def run_command(
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="Path of a document, such as pipeline.yaml.")],
    runtime: Annotated[RuntimeName, typer.Option(help="What runs it.")] = RuntimeName.LOCAL,
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Payload of the first message; @FILE takes it from a file."),
    ] = None,
    route: Annotated[str, typer.Option(metavar="ROUTE", help="That gets it. \\[default: that of init_message]")] = "",
    execution: Annotated[
        str,
        typer.Option(metavar="ID", help="For the execution; one that is there already goes on. \\[default: random]"),
    ] = "",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ROUTE", help="Run this route only; repeat it. Begins no execution."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="End with the execution. Otherwise it runs until it is interrupted.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Begin no execution: work what the queues hold.")] = False,
    home: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of queues, ledger and runs. \\[default: .tupletree/routes/NAME]"),
    ] = None,
    options: Option = None,
    master: Annotated[str, typer.Option(metavar="MASTER", help="Spark master.")] = "local[2]",
    summary: Annotated[SummaryFormat, typer.Option(help="json: the last line on stdout is one object.")] = (
        SummaryFormat.TEXT
    ),
) -> None:
    """Run a pipeline. Its document's init_message, or --payload, begins an execution.

    Progress and logs go to stderr, results to stdout. An interruption settles what is in flight; the execution goes
    on with the next run.

    Exit code: 0 the execution is complete; 3 with dead letters, or failed; 2 usage or document error; 1 runtime
    failure; 130 interrupted.
    """
    require_packages()
    from tupletree.cli.routes.progress import RouteProgress
    from tupletree.cli.settings import options_of
    from tupletree.routes.pipeline import Pipeline
    from tupletree.routes.status import StatusReader

    loaded = Pipeline.load(pipeline, home=home)
    begins = not (serve or only) and (payload is not None or loaded.spec.init_message is not None)
    _check_begins(pipeline, begins=begins, wait=wait, excluded="--serve" if serve else "--only" if only else "")
    if route and payload is None and begins:
        raise ConfigError("--route is for --payload, which is missing", where=pipeline, got=f"--route {route}")
    given = _payload(payload)
    with real_stdout(diverted=summary is SummaryFormat.JSON) as results, Interruption() as interruption:
        resolved = options_of({"message_timeout_s": None}, None, options or ())
        with (
            loaded.run(runtime=runtime.value, only=only or (), options=resolved, master=master) as run,
            RouteProgress(f"{loaded.spec.name} on {runtime.value}") as display,
        ):
            begun = _begin(run, given, payload is not None, route, execution) if begins else None
            if begun is not None:
                display.say(f"execution {escape(begun.id)}")
            ended = _watch(run, begun if wait else None, display, StatusReader(run.services), interruption)
            if ended is None and begun is not None:
                ended = begun.status()
        text = _summary(loaded.spec.name, ended, as_json=summary is SummaryFormat.JSON)
        print_result(text, results)
    raise typer.Exit(_exit_code(ended, interrupted=interruption.count > 0))


def _check_begins(pipeline: str, *, begins: bool, wait: bool, excluded: str) -> None:
    """Whether there is an execution to wait for. Raises ConfigError."""
    if begins or not wait:
        return
    what, next_step = "there is no execution to wait for", "say `init_message:` in the document, or give --payload JSON"
    if excluded:
        what = f"{excluded} begins no execution, so there is none to wait for"
        next_step = "run it without --wait; tupletree routes wait EXECUTION waits for one of another process"
    raise ConfigError(what, where=pipeline, next_step=next_step)


def _payload(text: str | None) -> Any:
    if text is None:
        return None
    try:
        read = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the file of the payload cannot be read", where=text[1:], got=str(error)) from error
    try:
        return json.loads(read)
    except ValueError as error:
        raise ConfigError(
            "the payload is no JSON",
            where="--payload",
            got=f"{read[:60]!r} ({error})",
            next_step="texts need quotes: '\"a\"'",
        ) from error


def _begin(run: PipelineRun, payload: Any, is_given: bool, route: str, execution: str) -> ExecutionHandle:
    init = run.spec.init_message
    if not is_given and init is not None:
        return run.execute(init=init, execution=execution)
    return run.execute(payload, route=route, execution=execution)


def _watch(
    run: PipelineRun, begun: ExecutionHandle | None, display: Any, reader: Any, interruption: Interruption
) -> Execution | None:
    """Show progress until the execution has ended or the run is interrupted."""
    handle = run.handle
    assert handle is not None, "it runs here"
    while not interruption.count:
        started_s = time.monotonic()
        if begun is None:
            try:
                handle.wait(POLL_S)
            except TimeoutError:
                pass
            else:
                return None  # its topology has ended: another process stopped it
        else:
            try:
                return begun.wait(POLL_S)
            except TimeoutError:
                pass
        if time.monotonic() - started_s < 10 * POLL_S:
            display.show(reader.read())
    display.say("interrupted: what is in flight is settled; interrupt again to stop at once")
    return None


def execution_json(one: Execution) -> dict[str, Any]:
    """An execution, for scripts."""
    return {
        "execution": one.id,
        "pipeline": one.pipeline,
        "state": one.state,
        "paused": one.paused,
        "messages": one.total,
        "open": one.open,
        "dead": one.dead,
        "seconds": round((one.ended_s or time.time()) - one.created_s, 3),
        "reason": one.reason,
    }


def execution_text(one: Execution) -> str:
    """An execution, in a line."""
    state = one.state.replace("_", " ") + (", paused" if one.paused else "")
    numbers = [counted(one.total, "message")]
    numbers += [f"{one.open:,} open"] if one.open else []
    numbers += [f"{one.dead:,} dead"] if one.dead else []
    seconds = (one.ended_s or time.time()) - one.created_s
    return f"{escape(one.id)}: {state}, {', '.join(numbers)}, {seconds:,.1f} s"


def _summary(pipeline: str, ended: Execution | None, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(execution_json(ended) if ended is not None else {"pipeline": pipeline})
    if ended is None:
        return f"{escape(pipeline)} has stopped"
    text = f"{escape(pipeline)} {execution_text(ended)}"
    if ended.dead:
        text += f"\n  why: tupletree lineage failures {escape(ended.id)}"
    return text


def _exit_code(ended: Execution | None, *, interrupted: bool) -> int:
    if ended is not None and ended.ended_s:
        return EXIT_DEAD_LETTERS if ended.dead or ended.state != "completed" else 0
    return EXIT_INTERRUPTED if interrupted else 0
