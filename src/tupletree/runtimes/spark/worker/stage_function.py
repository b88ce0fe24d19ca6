"""What the driver pickles for each stage of a run, and what a Spark worker imports to run it.

It is here, and not beside the job that it is a part of: a worker imports the module that a pickled class comes from,
and all that this imports. Nothing of the driver, its session or its Java is among that.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.segments import TakeRequest
from tupletree.runtimes.spark.format.slices import EpochSlice, rows_of_slice
from tupletree.runtimes.spark.worker.stage import TaskIdentity, run_stage
from tupletree.runtimes.spark.worker.taking import take

if TYPE_CHECKING:
    from pyspark.messages.socket.spark_socket_message_receiver import SparkSocketMessageReceiver
    from pyspark.messages.zero_copy_byte_stream import ZeroCopyByteStream

_tasks = count(1)
"""Of this worker process."""


class StageFunction:
    """What Spark runs for one partition of a stage: bytes in, bytes out.

    Where rows go through an exchange, each is preceded by the number of its partition, as `PairwiseRDD` wants it.

    Args:
        blob: the program, as `pack_program` made it.
        control: the `EpochControl` of this run, encoded.
        index: of the stage.
        slices: of the epoch, by partition, for stage 0: what it is given has no items. Those of other stages are packed
            rows.
        partitions: of the plan.
        is_last: whether its rows go to the driver, not through an exchange.
    """

    def __init__(
        self, blob: bytes, control: bytes, index: int, slices: Sequence[EpochSlice], partitions: int, *, is_last: bool
    ) -> None:
        self._blob = blob
        self._control = control
        self._index = index
        self._slices = [msgspec.msgpack.encode(part) for part in slices]  # a task decodes its own only
        self._partitions = partitions
        self._is_last = is_last

    def __call__(self, partition: int, items: Iterable[bytes]) -> Iterator[bytes]:
        """The rows of one partition. Called by Spark in a worker process, once for each attempt of the task."""
        context = _begin()
        identity = TaskIdentity(partition, context.attemptNumber(), context.taskAttemptId())
        rows: Iterable[wire.Row] = map(wire.unpack_row, items)
        if self._slices:
            deque(items, maxlen=0)  # Spark uses a worker again only if it has read to the end of what it was given
            rows = rows_of_slice(msgspec.msgpack.decode(self._slices[partition], type=EpochSlice))
        for row in run_stage(self._blob, self._control, self._index, identity, rows):
            if not self._is_last:
                yield (row[0] % self._partitions).to_bytes(8, "big")
            yield wire.pack_row(row)


class TakeFunction:
    """What Spark runs for a request to take messages: encoded requests in, encoded `Taken`s out.

    Args:
        blob: the program, as `pack_program` made it.
    """

    def __init__(self, blob: bytes) -> None:
        self._blob = blob

    def __call__(self, items: Iterable[bytes]) -> Iterator[bytes]:
        """Called by Spark in a worker process, once for each attempt of the task."""
        unique = _begin().taskAttemptId()
        for item in items:
            yield take(self._blob, msgspec.msgpack.decode(item, type=TakeRequest), unique)


def _begin() -> Any:
    """The context of this attempt of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a stage runs only inside a Spark task"
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches every process of the terminal. The driver drains then, and needs its workers for that.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    number = next(_tasks)
    if number == 1:
        end_in_silence()
    _keep_collections_short(number)
    return context


def end_in_silence() -> None:
    """Let this worker end without a word when Java closes its socket while it waits for a task.

    PySpark's main takes that for the failure of a task. Where Java, which ends then, has not killed it by the time, it
    writes a trace to stderr: the last lines of every tenth short run on a busy machine.
    """
    from pyspark.messages.socket.spark_socket_message_receiver import SparkSocketMessageReceiver  # a worker has it

    wait = SparkSocketMessageReceiver._do_get_init_message  # noqa: SLF001 - its caller checks an order, and no more

    def wait_or_end(self: SparkSocketMessageReceiver) -> ZeroCopyByteStream:
        try:
            return wait(self)
        except EOFError:
            os._exit(0)  # as PySpark's own workers end

    SparkSocketMessageReceiver._do_get_init_message = wait_or_end  # type: ignore[method-assign] # noqa: SLF001 - see above


def _keep_collections_short(number: int) -> None:
    """Take what is there now, modules above all, out of the collector's sight.

    PySpark's worker collects all garbage after each task, and the next task waits for it. What is left then is in use.
    Each doubling of the tasks is soon enough for what comes later, and seldom enough for what goes again.
    """
    if number & (number - 1) == 0:
        gc.freeze()
