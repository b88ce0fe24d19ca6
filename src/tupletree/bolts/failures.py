"""Turning what user code raised into a `Failure`: text only, bounded, and never raising itself."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from types import CodeType, TracebackType

from tupletree.bolts.effects import MAX_STRAYS_KEPT, Worked
from tupletree.bolts.forks import leave_if_forked
from tupletree.bolts.service_errors import is_of_service
from tupletree.data.frames import Root, roots_of
from tupletree.errors import PermanentError, ProcessingTimeoutError, RetryAfter, TupletreeError
from tupletree.texts import counted, encodable, text_by
from tupletree.topology.retry import Retry
from tupletree.tracking.outcomes import Failure, FailureKind, RetryRule

MAX_TEXT = 2_000
MAX_TRACEBACK = 8_000
MAX_STACK_FRAMES = 30
MAX_STACKS_KEPT = 256
OUR_MODULES = (
    "tupletree.bolts.",
    "tupletree.bolts.plain",
    "tupletree.bolts.arrow",
    "tupletree.bolts.collector",
    "tupletree.bolts.chunks",
    "tupletree.tasks.",
    "tupletree.bolts.call_retry",
    "tupletree.routing.groupings",
    "tupletree.runtimes.local.event_loop",
    "tupletree.runtimes.spark.worker.async_bolts",
    "tupletree.runtimes.spark.worker.segments",
    "tupletree.runtimes.spark.settle.sink_delivery",
    "tupletree.runtimes.spark.settle.sink_thread",
    "tupletree.sinks.foreach",
    "tupletree.sources.broker_spout",
    "concurrent.futures._base",
    "tupletree.testing.",
)
"""Prefixes of the modules that call user code."""


BEHIND = Failure(kind=FailureKind.ERROR, error="behind a tuple of its key that failed")
"""No failure, but a note in its place: tuples of this message are not worked now, and wait (see `tasks.in_order`)."""


def safe_text(value: object, limit: int = MAX_TEXT) -> str:
    """Text as it is and the `repr` of anything else, shortened; an object whose repr raises is named by its type.

    Lone surrogates are escaped, so the text can always be encoded.
    """
    return _bounded(value if isinstance(value, str) else text_by(repr, value), limit)


def _bounded(text: str, limit: int) -> str:
    text = str.__str__(text)  # a subclass of str may do anything
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text)} characters)"
    return encodable(text)


def wrong_type(value: object, expected: str) -> PermanentError:
    """The error for a bolt that emitted something its annotations do not declare: no other attempt can succeed."""
    got = f"{type(value).__module__}.{type(value).__qualname__}"
    return PermanentError(
        "the bolt emitted a value of an undeclared type",
        got=f"{got}: {safe_text(value, 200)}",
        expected=expected,
        next_step="declare it in the return annotation or the Collector, or emit the declared class",
    )


def rule_of(retry: Retry | None, error: BaseException | None) -> RetryRule | None:
    """How a message is tried again that this error failed; None: as after any failure.

    Args:
        retry: what the topology says about the component.
        error: the exception; None if the component failed the tuple in words.
    """
    after_s = error.seconds if isinstance(error, RetryAfter) else None
    settings = retry.settings_for(error) if retry is not None else None
    has_pauses = settings is not None and settings.has_pauses
    is_service = not has_pauses and is_of_service(error)
    if settings is None:
        return RetryRule(after_s=after_s, is_service=is_service) if is_service or after_s is not None else None
    return RetryRule(
        attempts=settings.attempts,
        backoff_s=settings.backoff_s,
        factor=settings.factor,
        max_s=settings.max_s,
        after_s=after_s,
        is_service=is_service,
    )


class FailureMaker:
    """Builds the failures of one task.

    Args:
        component, task_id: the task.
        retry: what the topology says about failures of the component.

    Attributes:
        behind: messages that failed → those in hand that are to wait for them; they get `BEHIND`. None: no such order.
    """

    def __init__(self, component: str, task_id: int, retry: Retry | None = None) -> None:
        self.behind: Callable[[Iterable[int]], Iterable[int]] | None = None
        self._component = component
        self._task_id = task_id
        self._retry = retry
        self._process = os.getpid()

    def of(self, value: object, error: BaseException | str | None, kind: FailureKind = FailureKind.ERROR) -> Failure:
        """A failure of the tuple `value`, from an exception or a reason in words."""
        raised = error if isinstance(error, BaseException) else None
        if isinstance(raised, SystemExit):
            leave_if_forked(self._process, raised.code)
        return Failure(
            kind=FailureKind.TIMEOUT if isinstance(raised, ProcessingTimeoutError) else kind,
            component=self._component,
            task_id=self._task_id,
            error_type=_type_name(raised) if raised is not None else "",
            error=_message(raised) if raised is not None else safe_text(_reason(error)),
            traceback=_traceback(raised) if raised is not None else "",
            failing_tuple=safe_text(value),
            permanent=isinstance(raised, PermanentError),
            retry=rule_of(self._retry, raised),
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
            if self.behind is not None:
                for one in self.behind(new):
                    failures.setdefault(one, BEHIND)

    def blame(self, worked: Worked, root: Root, value: object, error: BaseException | str | None) -> None:
        """As `note`; the failure of an untracked tuple, which has no verdict, becomes a stray."""
        if roots_of(root):
            self.note(worked.failures, root, value, error)
        else:
            self.stray(worked, value, error)

    def stray(self, worked: Worked, value: object, error: BaseException | str | None) -> None:
        """Record an error that fails no root."""
        worked.stray_count += 1
        if len(worked.strays) < MAX_STRAYS_KEPT:
            worked.strays.append(self.of(value, error))


def late_text(count: int, dropped: Sequence[Failure]) -> str:
    """What the log says of tuples that came too late for a window or join, and are dropped."""
    some = "; ".join(f"{one.failing_tuple}: {one.error}" for one in dropped)
    were = "was" if count == 1 else "were"
    return f"{counted(count, 'tuple')} came too late and {were} dropped: acked, and in no window. Such as {some}"


def _reason(words: object) -> object:
    nothing = words is None or (isinstance(words, str) and not words)
    return "the bolt failed the tuple" if nothing else words


def _type_name(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _message(error: BaseException) -> str:
    return _bounded(text_by(str, error), MAX_TEXT)


def _traceback(error: BaseException) -> str:
    """The user's part of the stack: frames of our own do not help a reader."""
    text = text_by(_formatted, error)
    return _bounded(text if len(text) <= MAX_TRACEBACK else "…" + text[-MAX_TRACEBACK:], MAX_TRACEBACK + 1)


def _formatted(error: BaseException) -> str:
    step = _below_dispatch(error)
    is_plain = error.__cause__ is None and error.__context__ is None and not isinstance(error, BaseExceptionGroup)
    if is_plain and isinstance(error, TupletreeError) and (step is None or _is_ours(step)):
        return ""  # an error of our own: its message is enough
    if step is None or not is_plain:
        return "".join(traceback.format_exception(type(error), error, step, limit=-MAX_STACK_FRAMES))
    only = "".join(traceback.format_exception_only(error))
    return f"Traceback (most recent call last):\n{_stack_text(step)}{only}"


_stacks: dict[tuple[int, ...], tuple[str, list[CodeType]]] = {}
"""Text of stacks that were met before, by the codes (which it keeps alive) and the places in them."""


def _stack_text(first: TracebackType) -> str:
    """The lines of a stack. The same few places fail again and again, and formatting asks the disk about every file.

    Each such question hands the interpreter to another thread, which may keep it for milliseconds.
    """
    codes: list[CodeType] = []
    key: list[int] = []
    step: TracebackType | None = first
    while step is not None:
        code = step.tb_frame.f_code
        codes.append(code)
        key += (id(code), step.tb_lasti)
        step = step.tb_next
    found = _stacks.get(tuple(key))
    if found is None:
        if len(_stacks) >= MAX_STACKS_KEPT:
            _stacks.clear()
        found = "".join(traceback.format_tb(first, limit=-MAX_STACK_FRAMES)), codes
        _stacks[tuple(key)] = found
    return found[0]


def _below_dispatch(error: BaseException) -> TracebackType | None:
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        if not _is_ours(step):
            break
        step = step.tb_next
    return step


def _is_ours(step: TracebackType) -> bool:
    name: str = step.tb_frame.f_globals.get("__name__", "")
    return name.startswith(OUR_MODULES)
