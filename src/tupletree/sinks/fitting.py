"""Whether rows fit their classes: a sink must refuse what an exchange would have refused.

Otherwise the outcome of a row would depend on whether it happened to cross partitions on its way to the sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tupletree.errors import ConfigError, ProcessingError
from tupletree.sinks.files import RowError, SinkRowsError
from tupletree.topology.components import SinkContext
from tupletree.topology.streams import is_message_class

if TYPE_CHECKING:
    import pyarrow as pa

    from tupletree.data.codec import ArrowCodec
    from tupletree.data.native_columns import NativeColumns


@lru_cache(maxsize=256)
def codec_of(cls: type) -> ArrowCodec[Any]:
    """The codec of a message class; pyarrow is imported at the first call."""
    from tupletree.data.codec import ArrowCodec
    from tupletree.topology.streams import Schema

    return ArrowCodec.of(Schema.of(cls))


@lru_cache(maxsize=256)
def native_columns_of(cls: type) -> NativeColumns:
    """The native columns of a message class; pyarrow is imported at the first call."""
    from tupletree.data.native_columns import NativeColumns
    from tupletree.topology.streams import Schema

    return NativeColumns(Schema.of(cls))


def columns_of(cls: type, *, native: bool) -> ArrowCodec[Any] | NativeColumns:
    """What makes record batches of the messages of a class."""
    return native_columns_of(cls) if native else codec_of(cls)


def batch_of(cls: type, rows: Sequence[Any], where: str, *, native: bool = False) -> pa.RecordBatch:
    """Rows as a record batch of their class. Raises SinkRowsError, naming `where`, with every row that does not fit."""
    columns = columns_of(cls, native=native)
    try:
        return columns.to_batch(rows)
    except ProcessingError as error:
        faults = [RowError(position, str(fault)) for position, fault in columns.check_each(rows)]
        if not faults:
            raise  # no single row is to blame
        raise SinkRowsError(where, faults) from error


def misfits(rows: Sequence[Any]) -> list[RowError]:
    """Every row whose fields are not what its class declares, by position; rows of other classes are not judged."""
    from tupletree.data.codec import EncodeError

    faults: list[RowError] = []
    classes = set(map(type, rows))
    for cls in filter(is_message_class, classes):
        positions = range(len(rows)) if len(classes) == 1 else [at for at, row in enumerate(rows) if type(row) is cls]
        values = rows if len(classes) == 1 else [rows[at] for at in positions]
        codec = codec_of(cls)
        try:
            codec.to_batch(values)
        except EncodeError:
            faults += [RowError(positions[at], str(fault)) for at, fault in codec.check_each(values)]
    return sorted(faults, key=lambda fault: fault.position)


def only_class(declared: type | None, context: SinkContext) -> type:
    """The class of the rows of a sink that holds one: the declared one, else that of its only input.

    Raises ConfigError if there are several.
    """
    if declared is not None:
        return declared
    if len(context.input_types) == 1:
        return context.input_types[0]
    raise ConfigError(
        "a table holds rows of one class",
        where=f"sink {context.component!r}",
        got=", ".join(cls.__qualname__ for cls in context.input_types) or "nothing",
        expected="one input class",
        next_step="give each class a sink and a table of its own",
    )
