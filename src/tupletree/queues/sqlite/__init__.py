"""The embedded queue: any number of queues in one SQLite file, for the processes of one host, without a server."""

from tupletree.queues.sqlite.broker import CAPABILITIES, REMEMBERS_ACKED_S, SqliteBroker, SqliteTransaction

__all__ = ["CAPABILITIES", "REMEMBERS_ACKED_S", "SqliteBroker", "SqliteTransaction"]
