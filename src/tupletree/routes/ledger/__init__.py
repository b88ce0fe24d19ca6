"""The ledger of routes: executions, their messages, and certain completion. `ledger.Ledger` is the way in."""

from tupletree.routes.ledger.ledger import Ledger
from tupletree.routes.ledger.values import (
    Arrival,
    ArrivalAnswer,
    Completed,
    Execution,
    LedgerRules,
    MessageAccount,
    MessageRow,
    NewMessage,
    OutboxRow,
    Replayed,
    RouteCounts,
    SettleEffects,
    StoredDocument,
    ToDeadLetter,
    ToRetry,
)

__all__ = [
    "Arrival",
    "ArrivalAnswer",
    "Completed",
    "Execution",
    "Ledger",
    "LedgerRules",
    "MessageAccount",
    "MessageRow",
    "NewMessage",
    "OutboxRow",
    "Replayed",
    "RouteCounts",
    "SettleEffects",
    "StoredDocument",
    "ToDeadLetter",
    "ToRetry",
]
