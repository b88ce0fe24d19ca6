"""The `tupletree` command: its subcommands, and how an error becomes one block of text and an exit code.

Commands import what they need when they run, so that `--help` answers at once. Nothing here prints results.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tupletree.cli import (
    check,
    dead,
    demo,
    doctor,
    graph,
    lineage,
    new,
    queues,
    routes,
    run,
    state,
    why,
)
from tupletree.cli.runs import control, status, watch
from tupletree.cli.summary import discard_output, open_standard_streams
from tupletree.errors import ConfigError, TupletreeError
from tupletree.escaping import escape_block

app = typer.Typer(
    name="tupletree",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def version_command() -> None:
    """Show the versions of Tupletree, Python and Spark."""
    import platform

    import tupletree
    from tupletree.runtimes.java import installed_version

    print(
        f"tupletree {tupletree.__version__}"
        f" (Python {platform.python_version()}, PySpark {installed_version('pyspark') or 'not installed'})"
    )


def _show_version(asked: bool) -> None:
    """Show them for `--version`, before any command is parsed."""
    if asked:
        version_command()
        raise typer.Exit


@app.callback()
def _tupletree(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
    # `main` takes it out of the arguments, wherever it is; declared for the help.
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. May be anywhere.")] = False,
) -> None:
    """Guaranteed message processing for Python, on Spark: the outcome of every message is known."""


app.command("run")(run.run_command)
app.command("check")(check.check_command)
app.command("graph")(graph.graph_command)
app.command("status")(status.status_command)
app.command("watch")(watch.watch_command)
app.command("pause")(control.pause_command)
app.command("resume")(control.resume_command)
app.command("drain")(control.drain_command)
app.add_typer(dead.app, name="dead")
app.add_typer(queues.app, name="queues")
app.add_typer(routes.app, name="routes")
app.add_typer(lineage.app, name="lineage")
app.command("why")(why.why_command)
app.command("state")(state.state_command)
app.command("demo")(demo.demo_command)
app.command("doctor")(doctor.doctor_command)
app.command("new")(new.new_command)
app.command("version")(version_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code (0, 1, 2, 3 or 130; see the documentation of `run`).

    Args:
        arguments: what follows the program's name; `sys.argv` by default.
    """
    open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that a terminal or a pipe cannot show is escaped
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        app(args=[argument for argument in given if argument != "--debug"], prog_name="tupletree")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        return 130
    except TupletreeError as error:
        _print_error(str(error), debug=debug)
        return error.exit_code
    except BrokenPipeError:  # `| head` has read enough
        discard_output()
        return 1
    except Exception as error:  # noqa: BLE001 - the edge: whatever is left is shown as one block too
        if isinstance(error, FileNotFoundError) and not _has_folder():
            _print_error(_NO_FOLDER, debug=debug)
            return ConfigError.exit_code
        hint = "" if debug else "\n  next: run it again with --debug to see where"
        _print_error(escape_block(f"unexpected {type(error).__name__}: {error}") + hint, debug=debug)
        return 1
    return 0


_NO_FOLDER = """the current folder is not there any more, and relative paths lead nowhere
  expected: a folder that exists
  next: cd to one, as to the new one of the same name: cd "$PWD\""""


def _has_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _print_error(text: str, *, debug: bool) -> None:
    """One block on stderr, after the traceback if that was asked for."""
    if debug:
        print(escape_block(traceback.format_exc()), file=sys.stderr)
    from tupletree.logs import json_line, writes_json

    print(json_line(text, level="ERROR") if writes_json() else f"error: {text}", file=sys.stderr)
