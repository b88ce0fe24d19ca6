"""Turning what user code raised into a `Failure`: text only, bounded, and never raising itself."""

from __future__ import annotations

import traceback
from collections.abc import MutableMapping

from tupletree.errors import PermanentError, ProcessingError
from tupletree.frames import Root, roots_of
from tupletree.tracking.outcomes import Failure, FailureKind

__all__ = ["FailureMaker", "safe_text", "wrong_type"]

MAX_TEXT = 2_000
MAX_TRACEBACK = 8_000
MAX_STACK_FRAMES = 30


def safe_text(value: object, limit: int = MAX_TEXT) -> str:
    """`repr` of anything, shortened; an object whose repr raises is named by its type.

    Lone surrogates are escaped, so the text can always be encoded.
    """
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:  # noqa: BLE001 - a repr, str or traceback of user code may raise anything
        text = f"<{type(value).__qualname__} whose repr raised {type(error).__qualname__}>"
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode()


def wrong_type(value: object, expected: str) -> ProcessingError:
    """The error for a bolt that emitted something its annotations do not declare."""
    got = f"{type(value).__module__}.{type(value).__qualname__}"
    return ProcessingError(
        "the bolt emitted a value of an undeclared type",
        got=f"{got}: {safe_text(value, 200)}",
        expected=expected,
        next_step="declare it in the return annotation or the Collector, or emit the declared class",
    )


class FailureMaker:
    """Builds the failures of one task."""

    def __init__(self, component: str, task_id: int) -> None:
        self._component = component
        self._task_id = task_id

    def of(self, value: object, error: BaseException | str | None, kind: FailureKind = FailureKind.ERROR) -> Failure:
        """A failure of the tuple `value`, from an exception or a reason in words."""
        raised = error if isinstance(error, BaseException) else None
        return Failure(
            kind=kind,
            component=self._component,
            task_id=self._task_id,
            error_type=_type_name(raised) if raised is not None else "",
            error=_message(raised) if raised is not None else safe_text(error or "the bolt failed the tuple"),
            traceback=_traceback(raised) if raised is not None else "",
            failing_tuple=safe_text(value),
            permanent=isinstance(raised, PermanentError),
        )

    def note(
        self,
        failures: MutableMapping[int, Failure],
        root: Root,
        value: object,
        error: BaseException | str | None,
    ) -> None:
        """Record the failure under every root of the tuple; a root's first failure wins."""
        new = [one for one in roots_of(root) if one not in failures]
        if new:
            failure = self.of(value, error)
            failures.update(dict.fromkeys(new, failure))


def _type_name(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return safe_text(str(error))
    except Exception as unprintable:  # noqa: BLE001 - a repr, str or traceback of user code may raise anything
        return f"<message could not be printed: {type(unprintable).__qualname__}>"


def _traceback(error: BaseException) -> str:
    """The user's part of the stack: frames of dispatch itself say nothing to the reader."""
    try:
        lines = traceback.format_exception(type(error), error, _below_dispatch(error), limit=-MAX_STACK_FRAMES)
        text = "".join(lines)
    except Exception as unprintable:  # noqa: BLE001 - a repr, str or traceback of user code may raise anything
        return f"<traceback could not be printed: {type(unprintable).__qualname__}>"
    return safe_text(text if len(text) <= MAX_TRACEBACK else "…" + text[-MAX_TRACEBACK:], MAX_TRACEBACK + 1)


def _below_dispatch(error: BaseException):  # type: ignore[no-untyped-def]  # types.TracebackType | None, kept lazy
    step = error.__traceback__
    while (
        step is not None
        and step.tb_next is not None
        and step.tb_frame.f_globals.get("__name__", "").startswith(("tupletree.dispatch", "tupletree.collecting"))
    ):
        step = step.tb_next
    return step
