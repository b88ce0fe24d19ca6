"""Delta Lake: rows of one class appended to one table, by the Rust implementation; no JVM, no jars.

Owns the transaction: each batch is one commit that carries the writer's number as a transaction of the Delta log, and a
batch that is there is not written again. Which Arrow type a field gets, and which values fit, is the codec's decision,
as for Parquet. deltalake is imported on first use (`pip install 'tupletree[delta]'`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tupletree.errors import ConfigError, ConnectorError, Finding, needing
from tupletree.sinks.batches import is_there
from tupletree.sinks.files import RowError, SinkRowsError
from tupletree.sinks.fitting import batch_of, columns_of, only_class
from tupletree.sinks.partitions import LONGEST_NAME, columns_of_partitions, partition_faults
from tupletree.topology.components import Sink, SinkBatch, SinkContext

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_REFUSED = "rows failed validation"
"""What the library says when a constraint of the table refuses rows; it does not say which."""


class DeltaSink(Sink[Any]):
    """Append rows to a Delta Lake table; its columns are the fields of the message class, matched by name.

    The table is made if it is not there; otherwise it is checked at the start: every field needs a column of its type,
    an integer or Decimal one that may have fewer digits, and further columns must allow null. A row with a number that
    such a column does not hold exactly is refused. Columns are those of `parquet`, but a timedelta is an int64 of
    microseconds.

    On Spark each row is there exactly once: a batch is one commit, whose `txn` action names the run's sink task and the
    epoch. Locally a batch is written once, and a message that was not acked before a restart comes again. A batch with
    a row that a constraint of the table refuses is refused as a whole.

    Args:
        table: a folder, or a URI that deltalake reads (`s3://…`, `abfss://…`).
        message_type: class of the rows; None takes that of the one stream the sink reads.
        storage_options: as deltalake takes them: credentials and settings of the store.
        native: see `parquet`; a time is text.
        partition_by: fields by which a table that is made is partitioned; one that is there must have these partitions.
            In any partitioned table a row with an empty text in such a column is refused: there it is NULL.

    Raises:
        ConfigError: `message_type` has no such fields, or they cannot name folders. Without it a start says so.
        RuntimeUnavailableError: deltalake is not installed.
    """

    promise = "exactly_once"
    gathers = True
    _table: DeltaTable  # since `open`
    _partitions: list[str]  # as well: columns of text that the table is partitioned by

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        message_type: type | None = None,
        storage_options: Mapping[str, str] | None = None,
        native: bool = False,
        partition_by: str | Sequence[str] = (),
    ) -> None:
        with needing("the Delta sink needs deltalake", "delta"):
            import deltalake  # noqa: F401 - so that it is missed here, and not when messages are in flight
        self.uri = os.fspath(table)
        self.message_type = message_type
        self.storage_options = dict(storage_options or {})
        self.native = native
        self.partition_by = columns_of_partitions(partition_by)
        if message_type is not None:
            self._refuse_unfit(message_type)

    def __repr__(self) -> str:
        return f"DeltaSink({self.uri!r})"

    def open(self, context: SinkContext) -> None:
        """Open the table, made if it is missing, and see that it fits.

        Raises:
            ConfigError: the table does not fit the class, everything at once; or the class is not known.
            ConnectorError: the table cannot be read or made.
        """
        import pyarrow as pa
        from deltalake import DeltaTable

        self.message_type = only_class(self.message_type, context)
        self._refuse_unfit(self.message_type)
        wanted = _stored(columns_of(self.message_type, native=self.native).arrow_schema)
        try:
            DeltaTable.create(
                self.uri,
                schema=wanted,
                mode="ignore",
                partition_by=list(self.partition_by) or None,
                storage_options=self.storage_options,
            )
            self._table = DeltaTable(self.uri, storage_options=self.storage_options)
            there, partitions = _columns_of(self._table), tuple(self._table.metadata().partition_columns)
        except Exception as error:  # the library raises plain Exceptions, too
            raise self._failed(error) from error
        findings = _misfits(wanted, there)
        if self.partition_by and partitions != self.partition_by:
            got = ", ".join(partitions) or "no partitions"
            findings.append(Finding("the table is partitioned otherwise", "", got, ", ".join(self.partition_by)))
        self._partitions = [name for name in partitions if pa.types.is_string(there.field(name).type)]
        if findings:
            name = self.message_type.__qualname__
            raise ConfigError(f"the Delta table {self.uri} does not fit {name}", findings=findings)

    def write(self, batch: SinkBatch[Any]) -> None:
        """Write a batch as one commit, unless it is there.

        Raises:
            SinkRowsError: rows that the class's Arrow types or the table's partitions cannot hold, or all if the table
                refuses some.
            ConnectorError: the table cannot be written; nothing was.
        """
        from deltalake import CommitProperties, Transaction, write_deltalake

        rows = self._encode(batch.rows)
        writer = batch.writer or batch.id
        try:
            self._table.update_incremental()
            if is_there(writer, self._table.transaction_version(writer), batch.number):
                return
            # Of two that write the same batch at the same time, the log lets one through.
            properties = CommitProperties(app_transactions=[Transaction(writer, batch.number)])
            write_deltalake(self._table, rows, mode="append", commit_properties=properties)
        except ConnectorError:
            raise
        except Exception as error:  # see `open`
            if _REFUSED in str(error):
                reason = str(error).strip()
                refused = (RowError(at, reason, type(error).__name__) for at in range(len(batch.rows)))
                raise SinkRowsError(str(self), refused) from error
            raise self._failed(error) from error

    def newest_batch(self, writer: str) -> int | None:
        """See `Sink`. Raises ConnectorError: the table cannot be read."""
        try:
            self._table.update_incremental()
            newest: int | None = self._table.transaction_version(writer)
        except Exception as error:  # see `open`
            raise self._failed(error) from error
        return newest

    def _encode(self, rows: Sequence[Any]) -> pa.Table:
        import pyarrow as pa

        from tupletree.data.native_columns import LIFTED

        assert self.message_type is not None
        encoded = batch_of(self.message_type, rows, str(self), native=self.native)
        there = _columns_of(self._table)
        faults: list[RowError] = []
        columns = [
            self._cast(encoded.column(field.name), field, faults)
            if field.name in encoded.schema.names
            else pa.nulls(len(rows), field.type)
            for field in there
        ]
        # Delta keeps a duration as a number: the files say what was one.
        lifted = {one.name for one in encoded.schema if one.metadata == LIFTED or "duration" in str(one.type)}
        schema = pa.schema([field.with_metadata(LIFTED) if field.name in lifted else field for field in there])
        table = pa.Table.from_arrays(columns, schema=schema)
        faults += [fault for name in self._partitions for fault in self._faults_in(name, table.column(name))]
        if faults:
            first = {fault.position: fault for fault in reversed(faults)}
            raise SinkRowsError(str(self), [first[at] for at in sorted(first)])
        return table

    def _cast(self, column: pa.Array[Any], field: pa.Field[Any], faults: list[RowError]) -> pa.Array[Any]:
        """A column as the table has it; NULL, and a fault, for each row that it cannot hold as it is."""
        import pyarrow as pa

        try:
            return column.cast(field.type)
        except pa.ArrowInvalid:
            pass
        held: list[pa.Array[Any]] = []
        for at in range(len(column)):
            value = column.take(pa.array([at]))  # a slice would bring the items of all rows
            try:
                held.append(value.cast(field.type))
            except pa.ArrowInvalid:
                reason = f"{field.name}: no column of {field.type} holds this: {value[0]}"
                faults.append(RowError(at, reason, "ValueError"))
                held.append(pa.nulls(1, field.type))
        return pa.concat_arrays(held)

    def _faults_in(self, name: str, column: pa.ChunkedArray[Any]) -> Iterator[RowError]:
        """The rows whose text cannot be the value of a partition."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # A store of objects takes longer names; a folder would not, however often the batch came again.
        most = LONGEST_NAME if "://" not in self.uri or self.uri.startswith("file:") else sys.maxsize
        for value in pc.unique(column).to_pylist():
            if value is None:
                continue
            length = len(f"{quote(name, safe='')}={quote(value, safe='')}".replace("~", "%7E"))
            if not value:
                reason = f"{name}: an empty text is NULL where a table is partitioned by it"
            elif length > most:
                reason = f"{name}: the name of its folder has {length} bytes, and may have {most}"
            else:
                continue
            found = pc.equal(column, pa.scalar(value, column.type))
            yield from (RowError(at, reason, "ValueError") for at in pc.indices_nonzero(found).to_numpy().tolist())

    def _refuse_unfit(self, cls: type) -> None:
        if faults := partition_faults(self.partition_by, cls):
            raise ConfigError(f"{self} cannot write {cls.__qualname__}", findings=faults)

    def _failed(self, error: Exception) -> ConnectorError:
        return ConnectorError(
            "the Delta table cannot be read or written",
            where=str(self),
            got=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            next_step="see that the store is there, and that this user may write to it",
        )


delta = DeltaSink


def _columns_of(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    columns: Any = table.schema().to_arrow()  # another library's class, that pyarrow can import
    return pa.schema(columns)


def _stored(schema: pa.Schema) -> pa.Schema:
    """The columns as Delta Lake can hold them."""
    import pyarrow as pa

    def kind(column: pa.DataType) -> pa.DataType:
        if pa.types.is_duration(column):
            return pa.int64()
        if pa.types.is_time(column):
            return pa.string()
        if isinstance(column, pa.StructType):
            return pa.struct([field.with_type(kind(field.type)) for field in column.fields])
        if isinstance(column, pa.MapType):
            return pa.map_(kind(column.key_type), kind(column.item_type))
        if pa.types.is_list(column):
            return pa.list_(kind(column.value_type))
        return pa.binary() if pa.types.is_fixed_size_binary(column) else column

    return pa.schema([pa.field(field.name, kind(field.type), field.nullable) for field in schema])


def _holds(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of the first type holds values of the second one exactly, but for those with too many digits."""
    import pyarrow as pa

    types = pa.types
    if there == wanted:
        return True
    if types.is_decimal(wanted):
        return types.is_decimal(there)
    if types.is_signed_integer(wanted):
        return types.is_signed_integer(there)
    if isinstance(wanted, pa.StructType) and isinstance(there, pa.StructType):
        pairs = zip(there.fields, wanted.fields, strict=False)
        return len(there.fields) == len(wanted.fields) and all(
            (one.name, one.nullable) == (other.name, other.nullable) and _holds(one.type, other.type)
            for one, other in pairs
        )
    if isinstance(wanted, pa.MapType) and isinstance(there, pa.MapType):
        return _holds(there.key_type, wanted.key_type) and _holds(there.item_type, wanted.item_type)
    if types.is_list(wanted) and types.is_list(there):
        return _holds(there.value_type, wanted.value_type)
    return False


def _misfits(wanted: pa.Schema, there: pa.Schema) -> list[Finding]:
    findings = []
    for field in wanted:
        if field.name not in there.names:
            findings.append(Finding(f"there is no column for the field {field.name!r}", expected=str(field.type)))
        elif not _holds(there.field(field.name).type, field.type):
            got = str(there.field(field.name).type)
            findings.append(
                Finding(f"the column of the field {field.name!r} has another type", got=got, expected=str(field.type))
            )
    findings += [
        Finding(f"the column {field.name!r} needs a value, and there is no such field", next_step="let it be null")
        for field in there
        if field.name not in wanted.names and not field.nullable
    ]
    return findings
