"""Files of a topology that change on the disk while its run goes on.

Owns noticing it and saying so. The driver and workers that have imported them go on with the old code; a worker that
starts from then on imports the new one. It refuses to judge whether that matters.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

logger = logging.getLogger("tupletree.spark")

LOOK_EVERY_S = 2.0
"""Seconds between two looks at the files, at least."""

_Stamp = tuple[int, int, int] | None


class CodeWatch:
    """The modules below a folder that are imported when it is made.

    Args:
        folder: where the topology's target is; None: nothing is watched.
    """

    def __init__(self, folder: Path | None) -> None:
        files = [] if folder is None else _modules_in(folder.resolve())
        self._stamps: dict[Path, _Stamp] = {path: _stamp(path) for path in files}
        self._looked_s = float("-inf")

    def look(self, now_s: float) -> None:
        """Log the files that have changed since the last look. `now_s` is monotonic."""
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        changed = [path for path, stamp in self._stamps.items() if _stamp(path) != stamp]
        self._stamps.update((path, _stamp(path)) for path in changed)
        if changed:
            logger.warning(
                "%s has changed while the run goes on: workers that start from now on have the new code, all others "
                "the old one; stop the run and start it again, and all have the new one",
                ", ".join(map(str, changed)),
            )


def _modules_in(folder: Path) -> list[Path]:
    """The files of imported modules below a folder, without those that are installed there."""
    named = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    files = {Path(name).resolve() for name in named if isinstance(name, str) and name.endswith(".py")}
    return sorted(
        path for path in files if path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts
    )


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
