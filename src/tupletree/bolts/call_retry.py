"""Call retry: a call of user code that raises is made again at once, as often as the task's place allows, or undone.

A runtime asks for it where a failure is more expensive than a call: in the later runs of an epoch on Spark, where
failures that differ from run to run would not end otherwise, and in first runs where it has helped before. Owns which
errors are worth another call, and that each call finds things as the first one did. It does not know what a call
does: the caller says how that is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from tupletree.bolts.effects import StateCell, TaskPlace
from tupletree.errors import InternalError, PermanentError, ProcessingTimeoutError, RetryAfter
from tupletree.topology.components import Tick

HELD_AT_MOST = 10_000
"""Tuples of one call that are held until it is over, so that it can be made again."""


def may_pass(error: BaseException, place: TaskPlace) -> bool:
    """Whether another call could succeed, and is not too expensive.

    What the bolt itself calls permanent does not pass, and a call that had to be interrupted took too long already. An
    outage does not pass at once, and where the bolt asks for a pause, none is made before that.
    """
    if isinstance(error, PermanentError | ProcessingTimeoutError | RetryAfter) or place.takes_as_outage(error):
        return False
    return place.retry is None or place.retry.settings_for(error).attempts != 1


def retrying_call(
    call: Callable[..., Any], place: TaskPlace, savepoint: Callable[[], Callable[[], None]] | None = None
) -> Callable[..., Any]:
    """A call that is made up to `place.calls` times while it raises; the call itself where that is once.

    Nothing may be left of a call that raised, but for what `savepoint` undoes: it is asked before the first call, and
    what it gives is called before each other. Calls for untracked tuples are not repeated: no message fails with them.

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
        try:
            return call(*values)
        except BaseException as error:  # noqa: BLE001 - as user code may raise anything
            failed = error
        try:  # out here, so that what further calls raise has no other error before it
            return again(values, undo, failed)
        finally:
            del failed  # it holds this frame

    def again(values: tuple[Any, ...], undo: Callable[[], None] | None, error: BaseException) -> Any:
        for left in range(place.calls - 1, -1, -1):
            if undo is not None and (left or place.takes_as_outage(error)):
                undo()
            if not left or not may_pass(error, place):
                if left < place.calls - 1:
                    place.calls_again.note(passed=False)
                raise error
            try:
                result = call(*values)
            except BaseException as raised:  # noqa: BLE001 - as in the first call
                error = raised
            else:
                place.calls_again.note(passed=True)
                return result
        raise InternalError("a call must be made at least once", got=str(place.calls))

    return insist


def to_its_end(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A call of a bolt that gives several, which has given them all when it returns.

    Very many tuples are not held as a whole: beyond `HELD_AT_MOST` it goes on after the return, and is not repeated.
    """

    def called(value: Any) -> Any:
        result = call(value)
        if result is None:
            return None
        rest = iter(result)
        first = [*islice(rest, HELD_AT_MOST)]
        return first if len(first) < HELD_AT_MOST else chain(first, rest)

    return called


def checking(call: Callable[[Any], Any], state: StateCell, check: Callable[[Any, Any], None]) -> Callable[[Any], Any]:
    """A call that fails if it leaves a value which cannot be stored, and leaves the key as it was if it fails.

    Ticks are not checked: no message could fail with them, and a keyed function has no key in hand.
    """

    def checked(value: Any) -> Any:
        if type(value) is Tick:
            return call(value)
        undo = state.savepoint()
        try:
            result = call(value)
            if hasattr(result, "__next__"):
                return yielding(result, undo)  # it has not run yet
            check(state.key, state.value)
        except BaseException:
            undo()
            raise
        return result

    def yielding(results: Iterator[Any], undo: Callable[[], None]) -> Iterator[Any]:
        try:
            yield from results
            check(state.key, state.value)
        except BaseException:
            undo()
            raise

    return checked
