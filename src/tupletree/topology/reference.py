"""A reference to a topology that another process can follow: which module, which name, which parameters.

Data only. The command line makes it; a runtime ships it to its workers, which then import the topology's module
under the same name instead of unpickling its classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TargetRef:
    """Where a topology comes from.

    Attributes:
        module: name under which its module is imported, on every machine.
        name: name in the module: a Topology, or a function that returns one.
        search_path: folder that must be on `sys.path` for the import; on a cluster its `module` is shipped.
        parameters: keyword arguments of the function, typed; empty for a Topology.
    """

    module: str
    name: str
    search_path: str
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords
