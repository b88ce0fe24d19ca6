"""`tupletree version`: the installed versions."""

from __future__ import annotations

import typer

__all__ = ["show_and_exit", "version_command"]


def version_command() -> None:
    """Show the versions of Tupletree, Python and Spark."""
    import platform

    import tupletree
    from tupletree.runtimes.java import installed_version

    print(
        f"tupletree {tupletree.__version__}"
        f" (Python {platform.python_version()}, PySpark {installed_version('pyspark') or 'not installed'})"
    )


def show_and_exit(asked: bool) -> None:
    """Show them for `--version`, before any command is parsed."""
    if asked:
        version_command()
        raise typer.Exit
