"""The Spark job of a run, made with as few calls of the JVM as there can be.

PySpark's RDDs look up each class and each method of a class by name again, copy the environment into a new map for
each stage, and send the items of `parallelize` through a file: 33 calls for a job of one stage. A call is two switches
between processes, and on a busy machine they were a quarter of the CPU time of a small job. `SparkJobs` does in the JVM
what these RDDs do, with what it has looked up once.

Knows what PySpark keeps to itself, and nothing of epochs: functions and rows are bytes here.
"""

from __future__ import annotations

import pickle
from typing import Any

LARGE_FUNCTION_BYTES = 2**20
"""From here on PySpark sends functions through a broadcast."""


class SparkJobs:
    """What the jobs of a plan have in common. Called by one thread."""

    def __init__(self, context: Any, partitions: int) -> None:
        from pyspark.serializers import NoOpSerializer

        jvm = context._jvm  # noqa: SLF001 - as `pyspark.core.rdd` does it
        self._context = context
        self._bytes = NoOpSerializer()
        self._function, self._python_rdd, self._pairs = jvm.SimplePythonFunction, jvm.PythonRDD, jvm.PairwiseRDD
        self._values, self._collect = self._python_rdd.valueOfPair, self._python_rdd.collectAndServe
        self._partitioner = jvm.PythonPartitioner(partitions, id(self))
        self._known: tuple[Any, Any] | None = None
        self._along: tuple[Any, Any, Any] | None = None
        self.no_items = context.parallelize([], partitions)._jrdd.rdd()  # noqa: SLF001 - as above
        """The input of a first stage: partitions without items."""

    def stage(self, rows: Any, function: Any) -> Any:
        """The rows of a stage.

        Args:
            rows: of the stage before, as this class gives them.
            function: called in a worker with a partition and its items; returns the bytes of each row.
        """
        return self._python_rdd(rows, self._sent(function), False, False)

    def exchanged(self, rows: Any) -> Any:
        """Rows by the number that precedes each: `RDD.partitionBy` without its buffering and pickling in Python.

        That buffers about a thousand rows before it checks their size, and rows are frames of up to megabytes.
        """
        pairs = self._pairs(rows).asJavaPairRDD()
        return self._values(pairs.partitionBy(self._partitioner)).rdd()

    def collect(self, rows: Any) -> list[bytes]:
        """Run the job. Raises what Spark raises."""
        from pyspark.util import _load_from_socket

        served = self._collect(rows)
        address = served[0]
        # The path of a socket comes without a secret, and asking an array for an element takes two calls.
        secret = None if isinstance(address, str) else served[1]
        with _load_from_socket((address, secret), self._bytes) as items:
            return list(items)

    def _sent(self, function: Any) -> Any:
        """A function as the JVM hands it to workers."""
        from pyspark.core.rdd import _wrap_function

        pickled = pickle.dumps((function, None, self._bytes, self._bytes))
        if len(pickled) > LARGE_FUNCTION_BYTES:
            return _wrap_function(self._context, function, self._bytes, self._bytes)
        environment, includes, no_broadcasts = self._sent_along()
        return self._function(
            bytearray(pickled),
            environment,
            includes,
            self._context.pythonExec,
            self._context.pythonVer,
            no_broadcasts,
            # No accumulator: Spark's scheduler would send an update of it to this process at the end of each task.
            None,
        )

    def _sent_along(self) -> tuple[Any, Any, Any]:
        """What workers get besides a function, as objects of the JVM; again if a user changed it, as by `addPyFile`."""
        from py4j.java_collections import ListConverter, MapConverter  # type: ignore[import-untyped]  # it has no hints

        context = self._context
        now = (dict(context.environment), list(context._python_includes))  # noqa: SLF001 - as above
        if self._along is None or now != self._known:
            client = context._gateway._gateway_client  # noqa: SLF001 - as above
            lists = ListConverter()
            self._along = (
                MapConverter().convert(now[0], client),
                lists.convert(now[1], client),
                lists.convert([], client),
            )
            self._known = now
        return self._along
