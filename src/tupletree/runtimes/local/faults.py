"""What the error of an executor is to the user: which component failed, and whether its code is to blame."""

from __future__ import annotations

from tupletree.errors import PROGRAMMING_ERRORS, ConnectorError, InternalError, SpoutCodeError, TupletreeError
from tupletree.routing.plan import Plan
from tupletree.runtimes.local.assembly import kind_of
from tupletree.runtimes.local.executor import Executor

SEE_TRACEBACK = "its traceback is the cause of this error; --debug shows it"


def fault_of(plan: Plan, executor: Executor, error: BaseException) -> BaseException:
    """The error as it is shown to the user."""
    if isinstance(error, TupletreeError) or (executor.in_hand is None and isinstance(error, Exception)):
        return error
    if executor.in_hand is None:
        return InternalError(f"an executor ended by {type(error).__name__}", got=str(error))
    component = plan.tasks[executor.in_hand].component
    if isinstance(error, PROGRAMMING_ERRORS) and kind_of(plan, plan.tasks[executor.in_hand]) == "spout":
        where = plan.spec.components[component].where
        return SpoutCodeError.of(f"{component!r} failed", error, where, next_step=SEE_TRACEBACK)
    fault = ConnectorError(
        f"{component!r} failed: {type(error).__name__}: {error}",
        where=plan.spec.components[component].where if component in plan.spec.components else component,
        next_step=SEE_TRACEBACK,
    )
    fault.__cause__ = error
    return fault
