"""Spools: rows for called sinks (a function, a database) wait in files of the state directory.

Workers write them as candidates, with a sidecar of their roots, as they do for file sinks; the driver reads them once
the epoch is committed (`calling`). Rows come back as values of their own class. It refuses to call anything.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tupletree.data.codec import ArrowCodec, EncodeError
from tupletree.durable import pack, private_folder, read_container, sync_directory
from tupletree.errors import CheckpointError
from tupletree.sinks.files import FileSink, RowError, SinkRowsError, written
from tupletree.sinks.fitting import codec_of
from tupletree.texts import counted
from tupletree.topology.changes.fingerprint import fingerprint
from tupletree.topology.model import ComponentSpec, TopologySpec
from tupletree.topology.ordering import asks_for_names, asks_for_order
from tupletree.tracking.message_ids import id_from_plain, plain_id

if TYPE_CHECKING:
    from tupletree.ids import MessageId


class _Run(msgspec.Struct, array_like=True):
    """Consecutive rows of one class: which class, how many rows, how many bytes."""

    cls: int
    rows: int
    length: int


class _Header(msgspec.Struct):
    """`made`: bytes of the rows' numbers in the order of making; `ids`: of their messages' ids. Both come last."""

    runs: list[_Run]
    made: int = 0
    ids: int = 0


class SpooledRows(NamedTuple):
    """What a spool holds: rows, and for each its number and the ids of its messages, where the sink asks for them."""

    rows: list[Any]
    made: list[int] | None
    ids: list[tuple[MessageId, ...]] | None


class Spool(FileSink):
    """The candidates of one called sink: a container whose sections are runs of rows of one class, as Arrow IPC.

    Args:
        classes: the classes of the sink's input streams, in the order of its inputs.
        ordered, names_messages: see `Sink`.
    """

    suffix = ".rows"

    def __init__(self, classes: Sequence[type], *, ordered: bool = False, names_messages: bool = False) -> None:
        super().__init__("", made=ordered)
        self.names_messages = names_messages
        self.classes = tuple(dict.fromkeys(classes))

    def write_candidate(
        self,
        path: Path,
        rows: Sequence[Any],
        made: Sequence[int] | None = None,
        ids: Sequence[tuple[MessageId, ...]] | None = None,
    ) -> None:
        """See `FileSink.write_candidate`; `ids` are those of each row's messages, if the sink asks for them."""
        runs: list[_Run] = []
        sections: list[bytes] = []
        faults: list[RowError] = []
        start = 0
        for cls, group in groupby(rows, key=type):
            values = list(group)
            codec = self._codec(cls)
            try:
                encoded = codec.encode(values)
            except EncodeError:
                found = [RowError(start + position, str(fault)) for position, fault in codec.check_each(values)]
                if not found:
                    raise  # no single row is the cause
                faults += found
                encoded = b""
            runs.append(_Run(self.classes.index(codec.schema.cls), len(values), len(encoded)))
            sections.append(encoded)
            start += len(values)
        if faults:
            raise SinkRowsError(str(path), faults)
        with written(path, mode=0o600) as file:
            numbers = b"" if made is None else array("q", made).tobytes()
            plain = [list(map(plain_id, one)) for one in ids or ()]
            names = b"" if ids is None else msgspec.msgpack.encode(plain)
            file.writelines(pack(_Header(runs, len(numbers), len(names)), [*sections, numbers, names]))

    def filter_candidate(self, source: Path, destination: Path, keep: Sequence[bool]) -> int:
        rows, made, ids = self.read(source)
        if len(rows) != len(keep):
            raise CheckpointError(
                "a candidate file has the wrong number of rows",
                where=str(source),
                got=counted(len(rows), "row"),
                expected=counted(len(keep), "row"),
            )
        kept = list(compress(rows, keep))
        numbers = None if made is None else list(compress(made, keep))
        self.write_candidate(destination, kept, numbers, None if ids is None else list(compress(ids, keep)))
        return len(kept)

    def read(self, path: Path) -> SpooledRows:
        """What a candidate holds. Raises CheckpointError for a damaged one."""
        header, body = read_container(path, _Header)
        rows: list[Any] = []
        start = 0
        for run in header.runs:
            rows += self._codec(self.classes[run.cls]).decode(body[start : start + run.length])
            start += run.length
        made = array("q", bytes(body[start : start + header.made])).tolist() if header.made else None
        start += header.made
        ids: list[tuple[MessageId, ...]] | None = None
        if header.ids:
            plain = msgspec.msgpack.decode(body[start : start + header.ids])
            ids = [tuple(map(id_from_plain, one)) for one in plain]
        return SpooledRows(rows, made, ids)

    def _codec(self, cls: type) -> ArrowCodec[Any]:
        # The codec refuses values of another class, row by row.
        return codec_of(cls if cls in self.classes else self.classes[0])


def file_sink_of(spec: TopologySpec, component: ComponentSpec) -> FileSink:
    """The writer of a sink's candidates: the sink itself, or a spool for a called sink."""
    if isinstance(component.body, FileSink):
        return component.body
    streams = (spec.components[entry.component].outputs[entry.stream] for entry in component.inputs)
    return Spool(
        [stream.schema.cls for stream in streams],
        ordered=asks_for_order(component),
        names_messages=asks_for_names(component),
    )


def called_sinks(spec: TopologySpec) -> list[ComponentSpec]:
    """The sinks that are not folders of files."""
    return [
        component
        for component in spec.components.values()
        if component.kind == "sink" and not isinstance(component.body, FileSink)
    ]


def lasting_fingerprint(spec: TopologySpec) -> dict[str, dict[str, Any]]:
    """The fingerprint of a topology and of the form in which the rows of its sinks wait.

    Rows that a killed run committed wait in that form: a sink of another kind would not find them.
    """
    found = fingerprint(spec)
    for name, component in spec.components.items():
        if component.kind == "sink":
            suffix = file_sink_of(spec, component).suffix
            found[name]["sink"] = "calls" if suffix == Spool.suffix else f"{suffix} files"
    return found


def make_spools(directory: Path, spec: TopologySpec) -> dict[str, str]:
    """Make a folder for each called sink; returns sink → folder."""
    folders = {component.name: directory / component.name for component in called_sinks(spec)}
    for folder in folders.values():
        private_folder(folder)
    if folders:
        sync_directory(directory)
    return {name: str(folder) for name, folder in folders.items()}
