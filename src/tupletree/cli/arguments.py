"""Arguments and options that several commands share, each declared once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class RuntimeName(Enum):
    """What may run a topology."""

    SPARK = "spark"
    LOCAL = "local"


Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="file.py[:name] or package.module[:name]; the name is `topology`.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a parameter of the topology's function; for lists repeat it, or use commas (\\, for one in a value); "
        "=@FILE or =$VARIABLE takes it from there.",
    ),
]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="Set an option, as in max_attempts=3. Overrides every other place."
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file with a table \\[tupletree]. \\[default: tupletree.toml]"),
]
StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="State directory of the run. \\[default: the latest here]"),
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename", metavar="OLD=NEW", help="What is stored of the component OLD is that of NEW; may be repeated."
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="NAME",
        help="What is stored of this component may be lost, or of a field (COMPONENT.CLASS.FIELD), "
        "or what it holds of an input that is gone (COMPONENT.PRODUCER.STREAM); may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
