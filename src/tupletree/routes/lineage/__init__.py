"""Lineage: which adapter was called for which message, with what result, and which messages came of which.

A record per call goes through `sink` and `writer` to a store (`stores`): a database, or a folder of Parquet files.
`queries` answers, one layer for all of them. Lineage is best effort and never in the way; what became of a message for
certain is in the ledger.
"""

from tupletree.routes.lineage.answers import Call, StepStats, Tree, TreeMessage
from tupletree.routes.lineage.exports import Export, RunEventExport, SpanExport, tell_completed
from tupletree.routes.lineage.interop.headers import ChildHeaders
from tupletree.routes.lineage.levels import Level
from tupletree.routes.lineage.queries import Lineage
from tupletree.routes.lineage.sink import LineageSink, tell_pending
from tupletree.routes.lineage.stores import open_store, store_beside
from tupletree.routes.lineage.writer import Counts, LineageWriter

__all__ = [
    "Call",
    "ChildHeaders",
    "Counts",
    "Export",
    "Level",
    "Lineage",
    "LineageSink",
    "LineageWriter",
    "RunEventExport",
    "SpanExport",
    "StepStats",
    "Tree",
    "TreeMessage",
    "open_store",
    "store_beside",
    "tell_completed",
    "tell_pending",
]
