"""Where commands look by default: the settings file in the current folder, the state directory of the latest run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tupletree.config import Options, resolve_options
from tupletree.errors import ConfigError

if TYPE_CHECKING:
    from tupletree.topology.changes.upgrades import Words

STATE_ROOT = Path(".tupletree")
_SETTINGS_FILE = Path("tupletree.toml")


def options_of(code: Mapping[str, Any], file: Path | None, command_line: Sequence[str]) -> Options:
    """Resolve options for a command: those of `tupletree.toml` in the current folder if no file is named."""
    if file is None and _SETTINGS_FILE.is_file():
        file = _SETTINGS_FILE
    return resolve_options(code=code, file=file, environment=os.environ, command_line=command_line)


def find_state_dir(given: Path | None) -> Path:
    """The state directory named, or that of the latest run below the current folder.

    Raises:
        ConfigError: it does not exist.
    """
    if given is not None:
        if not given.is_dir():
            raise ConfigError(
                "the state directory does not exist",
                where=str(given.absolute()),
                expected="the state directory of a run",
                next_step="name the one that `tupletree run` showed: state in DIR",
            )
        return given
    return _latest(STATE_ROOT, "*/*/tupletree.json")


def latest_of(topology: str) -> Path:
    """The state directory of the latest run of a topology below the current folder. Raises ConfigError."""
    return _latest(STATE_ROOT / topology, "*/tupletree.json")


def _latest(root: Path, pattern: str) -> Path:
    runs = [mark.parent for mark in root.glob(pattern)]
    if not runs:
        pipelines = " (pipelines that were run here: tupletree routes list)" if any(root.glob("routes/*")) else ""
        raise ConfigError(
            "there is no run here",
            where=str(root.absolute()),
            expected="the state directory of a run",
            next_step=f"go to the folder where it was started, or name it: --state-dir DIR{pipelines}",
        )
    return max(runs, key=lambda run: run.stat().st_mtime)


def words_of(renames: Sequence[str], drops: Sequence[str]) -> Words:
    """What `--rename` and `--drop` say. Raises ConfigError for a rename that is none."""
    from tupletree.topology.changes.upgrades import read_words

    try:
        return read_words(renames, drops)
    except ValueError as error:
        raise ConfigError(
            "this is no rename", where="--rename", got=str(error), expected="OLD=NEW, as in --rename count=tally"
        ) from error
