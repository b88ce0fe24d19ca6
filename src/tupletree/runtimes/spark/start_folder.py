"""The folder in which a run was first started: relative paths must mean the same there, or a start is refused.

Owns the file that remembers the folder. Sources of files compare their own paths (`file_table`).
"""

from __future__ import annotations

import json
from pathlib import Path

from tupletree.config import Options
from tupletree.durable import write_once
from tupletree.errors import CheckpointError, Finding
from tupletree.sinks.files import FileSink
from tupletree.topology.model import TopologySpec

NAME = "started_in.json"


def refuse_other_folder(state_dir: Path, spec: TopologySpec, options: Options) -> None:
    """Remember the folder of the first start; later, compare it if relative paths depend on it.

    A folder that no longer exists was moved with everything in it, so it is no reason to refuse.

    Raises:
        CheckpointError: this process is in another folder, and a sink or an option has a relative path.
    """
    file, here = state_dir / NAME, str(Path.cwd())
    if not file.exists():
        write_once(file, json.dumps(here).encode("ascii"))
        return
    first = json.loads(file.read_bytes())
    if first == here or not Path(first).is_dir():
        return
    findings = [
        Finding(
            "a relative path means a different folder from the one at the first start",
            where=place,
            got=str(path.absolute()),
            expected=str(Path(first, path)),
            next_step=f"start it in {first}, or give absolute paths from the first start on",
        )
        for place, path in _relative_paths(spec, options).items()
    ]
    if findings:
        raise CheckpointError("the run was first started in another folder", findings=findings)


def _relative_paths(spec: TopologySpec, options: Options) -> dict[str, Path]:
    paths = {
        f"sink {component.name!r}": component.body.directory
        for component in spec.components.values()
        if isinstance(component.body, FileSink)
    }
    if options.progress_file is not None:
        paths["option progress_file"] = Path(options.progress_file)
    return {place: path for place, path in paths.items() if not path.is_absolute()}
