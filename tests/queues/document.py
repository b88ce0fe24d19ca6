"""What docs/queues.md holds: the broker that it writes, and the table of capabilities.

`python -m tests.queues.document` writes the table again.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from tests.docs.documents import ROOT, blocks_of
from tupletree.queues import Broker, Capabilities
from tupletree.queues.kafka import CAPABILITIES as KAFKA
from tupletree.queues.nats import CAPABILITIES as NATS
from tupletree.queues.rabbitmq import CAPABILITIES as RABBITMQ
from tupletree.queues.redis import CAPABILITIES as REDIS
from tupletree.queues.sqlite import CAPABILITIES
from tupletree.queues.sqs import CAPABILITIES as SQS
from tupletree.testing.queue_conformance import BrokerUnderTest

DOCUMENT = ROOT / "docs" / "queues.md"
_TABLE = re.compile(r"(?<=<!-- capabilities -->\n).*?(?=<!-- end of capabilities -->)", re.DOTALL)

MEANINGS = {
    "idempotent_publish": "an id is stored once",
    "remembers_acked_s": "seconds for which an id is known after its ack",
    "delay": "`delay_s` of messages",
    "retry_delay": "`delay_s` of failures",
    "absolute_time": "`not_before_s`",
    "extend": "`extend`",
    "fencing": "the handle of an old lease is refused",
    "uncounted": "`Failure(counts=False)`",
    "dead_letters": "`dead_letter`",
    "find": "`find`",
    "peek": "states for which `peek` works",
    "move": "states for which `move` works",
    "purge": "states for which `purge` works",
    "states": "what `depth` counts",
    "counts_open": "`depth().open` counts all that is not done",
    "key_order": "`ordered=True`",
    "atomic_move": "a crash in a move leaves a message in one queue only",
    "atomic_settle": "`settle` happens as a whole or not at all",
    "runs_sql": "`settle(within=)`",
    "durable_acks": "a crash of the broker forgets no ack",
    "ack_anywhere": "any connection may settle a handle",
    "several_hosts": "consumers on several hosts",
    "lists_queues": "`queues`",
    "by_message": "consumers share a queue message by message, not part by part",
    "holds_only_leased": "a connection keeps from others only what it leased",
    "leases_survive": "a lease lasts though its connection is gone",
    "max_lease_s": "longest lease, in seconds, also when it is extended",
    "max_body_bytes": "largest body, in bytes",
}


def folder_broker(folder: Path) -> ModuleType:
    """The module that the document writes, imported from a file in `folder`."""
    [block] = [block for block in blocks_of(DOCUMENT) if block.title == "folder_broker.py"]
    path = folder / block.title
    path.write_text(block.text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("folder_broker", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FolderQueue(BrokerUnderTest):
    name = "folder"

    def __init__(self, folder: Path) -> None:
        self.module = folder_broker(folder)
        self.folder = folder / "queues"
        self.folder.mkdir()
        self.now_s = 1_700_000_000.0

    def connect(self, *, skew_s: float = 0.0) -> Broker:
        made: Broker = self.module.FolderBroker(self.folder, clock=lambda: self.now_s, sleep=self.advance)
        return made

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def capabilities_table(folder: Path) -> str:
    brokers: dict[str, Capabilities] = {
        "sqlite": CAPABILITIES,
        "redis": REDIS,
        "nats": NATS,
        "rabbitmq": RABBITMQ,
        "kafka": KAFKA,
        "sqs": SQS,
        "folder": folder_broker(folder).FolderBroker.capabilities,
    }
    rows = [f"| Capability | What it is | {' | '.join(brokers)} |", "|---|---|" + "---|" * len(brokers)]
    for name in Capabilities.__struct_fields__:
        cells = [_shown(getattr(capabilities, name)) for capabilities in brokers.values()]
        rows.append(f"| `{name}` | {MEANINGS[name]} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "no"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def table_in_document() -> str:
    found = _TABLE.search(DOCUMENT.read_text(encoding="utf-8"))
    return found[0] if found else ""


def write_table() -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        table = capabilities_table(Path(folder))
    DOCUMENT.write_text(_TABLE.sub(lambda _: table, DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write_table()
    sys.exit(0)
