"""Repeating: a call of user code that raises is made again at once, as often as the task's place allows.

A runtime asks for that where another failure would cost more than a call: in the later runs of an epoch on Spark, where
failures that differ from run to run would else find no end. Owns which errors are worth another call, and that each
call finds things as the first one did. Refuses to know what a call does: whoever makes it says how that is undone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tupletree.effects import TaskPlace
from tupletree.errors import PermanentError, ProcessingTimeoutError

__all__ = ["insisting", "may_pass"]


def may_pass(error: BaseException) -> bool:
    """Whether another call could come to something else, at a price that can be paid.

    What the bolt itself calls permanent does not pass, and a call that had to be interrupted took too long already.
    """
    return not isinstance(error, PermanentError | ProcessingTimeoutError)


def insisting(
    call: Callable[..., Any], place: TaskPlace, savepoint: Callable[[], Callable[[], None]] | None = None
) -> Callable[..., Any]:
    """A call that is made up to `place.calls` times while it raises; the call itself where that is once.

    Nothing may be left of a call that raised, but for what `savepoint` undoes: it is asked before the first call, and
    what it gives is called before each other. Untracked tuples are not insisted on: no message fails of them.

    Args:
        call: what user code is called by. What it returns is taken as it is, so it has to be over by then: a generator
            must have come to its end.
        place: of the task.
        savepoint: how state is put back.
    """
    if place.calls == 1:
        return call

    def insist(*values: Any) -> Any:
        if not place.root:
            return call(*values)
        undo = savepoint() if savepoint is not None else None
        for _ in range(place.calls - 1):
            try:
                return call(*values)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if not may_pass(error):
                    raise
            if undo is not None:
                undo()
        return call(*values)

    return insist
