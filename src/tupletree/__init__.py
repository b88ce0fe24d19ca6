"""Guaranteed message processing for Python, on Spark.

This is what users import. It loads no runtime: `run` is looked up when it is first used, and pyspark, pandas and
pyarrow only where they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tupletree.config import Options
from tupletree.errors import (
    ConfigError,
    ConnectorError,
    EndOfInput,
    PermanentError,
    ProcessingError,
    RetryAfter,
    SourceChangedError,
    TopologyError,
    TupleSettledError,
    TupletreeError,
)
from tupletree.topology.builder import Topology
from tupletree.topology.components import (
    Anchored,
    AsyncSpout,
    Bolt,
    Collector,
    Emit,
    Held,
    HoldingBolt,
    KeyedBatch,
    KeyedState,
    Reject,
    Release,
    Resource,
    Sink,
    SinkBatch,
    SinkContext,
    Spout,
    TaskContext,
    TaskState,
    Tick,
)
from tupletree.topology.decorators import arrow_bolt, batch_bolt, bolt
from tupletree.topology.retry import Retry
from tupletree.topology.secret import Secret
from tupletree.topology.splits import Split, SplitSpout
from tupletree.topology.states import ListState, MapState
from tupletree.topology.window_decorators import join_bolt, window_bolt
from tupletree.topology.windows import Window
from tupletree.tracking.outcomes import DeadLetter, Failure, Outcome

if TYPE_CHECKING:
    from tupletree.runtimes.run import run

__version__ = "0.1.0"

__all__ = [
    "Anchored",
    "AsyncSpout",
    "Bolt",
    "Collector",
    "ConfigError",
    "ConnectorError",
    "DeadLetter",
    "Emit",
    "EndOfInput",
    "Failure",
    "Held",
    "HoldingBolt",
    "KeyedBatch",
    "KeyedState",
    "ListState",
    "MapState",
    "Options",
    "Outcome",
    "PermanentError",
    "ProcessingError",
    "Reject",
    "Release",
    "Resource",
    "Retry",
    "RetryAfter",
    "Secret",
    "Sink",
    "SinkBatch",
    "SinkContext",
    "SourceChangedError",
    "Split",
    "SplitSpout",
    "Spout",
    "TaskContext",
    "TaskState",
    "Tick",
    "Topology",
    "TopologyError",
    "TupleSettledError",
    "TupletreeError",
    "Window",
    "__version__",
    "arrow_bolt",
    "batch_bolt",
    "bolt",
    "join_bolt",
    "run",
    "window_bolt",
]


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tupletree.runtimes import run

    return run.run
