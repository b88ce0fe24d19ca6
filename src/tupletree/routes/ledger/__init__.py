"""The ledger of routes: executions, their messages, and certain completion. `ledger.Ledger` is the way in."""

from tupletree.routes.ledger.ledger import Ledger
from tupletree.routes.ledger.values import (
    Arrival,
    Completed,
    LedgerRules,
    NewMessage,
    OutboxRow,
    Retry,
    SettleEffects,
    ToDeadLetter,
    Verdict,
)

__all__ = [
    "Arrival",
    "Completed",
    "Ledger",
    "LedgerRules",
    "NewMessage",
    "OutboxRow",
    "Retry",
    "SettleEffects",
    "ToDeadLetter",
    "Verdict",
]
