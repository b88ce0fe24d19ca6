"""The exception tree: every error a user can see.

Owns the shape of an error (what failed, where, got, expected, next step) and the exit code that a command ends with.
It refuses to format tracebacks or to log: that is the edge's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tupletree.escaping import escape_block

__all__ = [
    "PROGRAMMING_ERRORS",
    "CheckpointError",
    "ConfigError",
    "ConnectorError",
    "EndOfInput",
    "Finding",
    "ForeignCheckpointError",
    "InternalError",
    "OutageLimitError",
    "PermanentError",
    "ProcessingError",
    "ProcessingTimeoutError",
    "RetryAfter",
    "RuntimeUnavailableError",
    "SourceChangedError",
    "SpoutCodeError",
    "TopologyError",
    "TupleSettledError",
    "TupletreeError",
    "UnavailableAtStartError",
    "UnusableDataError",
    "did_you_mean",
    "is_outage",
    "nearest",
    "needing",
    "one_of",
]


LONGEST_PAUSE_S = 31_536_000.0
"""A year."""


@dataclass(frozen=True)
class Finding:
    """One fault: where it is, what is wrong, what was got and expected, and the next step.

    Only `what` is required; empty parts are left out of the text, and what a terminal would execute is escaped in it.
    """

    what: str
    where: str = ""
    got: str = ""
    expected: str = ""
    next_step: str = ""

    @classmethod
    def unknown(cls, what: str, where: str, name: str, known: Iterable[str], otherwise: str = "") -> Finding:
        """A name that is none of the known ones: says which there are, and which one is probably meant.

        Args:
            what: see `Finding`.
            where: see `Finding`.
            name: that was given.
            known: that would have been right.
            otherwise: the next step if no known name is close.
        """
        names = [*known]
        return cls(what, where, expected=one_of(names), next_step=did_you_mean(name, names) or otherwise)

    def __str__(self) -> str:
        head = escape_block(f"{self.where}: {self.what}" if self.where else self.what)
        parts = [
            f"  {label}: {escape_block(text)}"
            for label, text in (("got", self.got), ("expected", self.expected), ("next", self.next_step))
            if text
        ]
        return "\n".join([head, *parts])


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Within, packages of an extra are imported.

    Args:
        what: what needs which package, as a sentence.
        extra: of Tupletree's, that brings it.

    Raises:
        RuntimeUnavailableError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        next_step = f"pip install 'tupletree[{extra}]'"
        raise RuntimeUnavailableError(what, got=str(error), next_step=next_step) from error


def one_of(names: Iterable[str]) -> str:
    """The names that would have been right, as a text."""
    return ", ".join(names) or "(none)"


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant, whatever the case and the dashes; empty if none is close."""
    import difflib

    folded = {one.casefold().replace("-", "_"): one for one in known}
    near = difflib.get_close_matches(name.casefold().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else ""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A suggestion for a misspelt name; empty if no name is close."""
    near = nearest(name, names)
    return f"did you mean {near!r}?" if near else ""


class TupletreeError(Exception):
    """Base of every error that Tupletree raises for a reason of its own.

    Args:
        what: what failed, as a sentence.
        where: component, file and line, or path.
        got: the offending value or state, shortened.
        expected: what would have been right.
        next_step: what the reader can do now.
        findings: several faults found together; overrides the single parts.
    """

    exit_code = 1

    def __init__(
        self,
        what: str = "",
        *,
        where: str = "",
        got: str = "",
        expected: str = "",
        next_step: str = "",
        findings: Iterable[Finding] = (),
    ) -> None:
        self.what = what
        self.findings: tuple[Finding, ...] = tuple(findings) or (Finding(what, where, got, expected, next_step),)
        super().__init__(what)

    def __str__(self) -> str:
        if len(self.findings) == 1 and self.findings[0].what == self.what:
            return str(self.findings[0])
        body = "\n".join(str(finding) for finding in self.findings)
        return f"{escape_block(self.what)}\n{body}" if self.what else body


class TopologyError(TupletreeError):
    """The topology is wrong; `findings` holds every fault, not just the first."""

    exit_code = 2


class ConfigError(TupletreeError):
    """An option, parameter or file of settings is wrong; `findings` holds every fault."""

    exit_code = 2


class ProcessingError(TupletreeError):
    """A tuple could not be processed: raise it (or any exception) in a bolt to fail the tuple."""


class PermanentError(ProcessingError):
    """Raise it in a bolt when a retry cannot help: the message goes to the dead letters at once."""


class RetryAfter(ProcessingError):  # noqa: N818 - it is a request, and reads as one: `raise RetryAfter(30)`
    """Raise it in a bolt: this attempt failed, and the next one is not to begin before so many seconds.

    It counts as an attempt. The pause is that long, and up to `backoff_jitter` longer; the longest that other failures
    have (`backoff_max_ms`) does not limit it. A source that replays by itself is told at once, and finds the seconds in
    `failure.retry.after_s`.

    Args:
        seconds: for example what an HTTP response says in `Retry-After`. Below 0 is 0, above a year is a year.
        what: why, for the log and the dead letter.

    Raises:
        ValueError: `seconds` is no number.
    """

    def __init__(self, seconds: float, what: str = "the attempt is to be made again later") -> None:
        if seconds != seconds:  # noqa: PLR0124 - not a number
            raise ValueError(f"seconds must be a number, not {seconds}")
        self.seconds = min(max(0.0, float(seconds)), LONGEST_PAUSE_S)
        super().__init__(what, expected=f"a pause of {self.seconds:g} s before the next attempt")

    def __reduce__(self) -> tuple[type, tuple[float, str]]:
        return type(self), (self.seconds, self.what)


class TupleSettledError(ProcessingError):
    """A bolt emitted anchored to a tuple that it had acked or failed already."""


class ConnectorError(TupletreeError):
    """Something outside of the topology is not available: a service, a database, a disk.

    Raised by a spout, a bolt or a sink it is an outage, not the failure of a message: the runtimes pause what met it,
    make the call again until it succeeds, and count no attempt. Where the data are to blame, raise another exception.
    """

    is_outage = True  # what the outside cannot fix is none: see the subclasses


class UnusableDataError(ConnectorError):
    """What was read or given cannot be used, whenever it is tried again: damaged bytes, no message, no message id."""

    is_outage = False


class SourceChangedError(ConnectorError):
    """What a source gave before, and is to give again, no longer exists, or has changed."""

    is_outage = False


class OutageLimitError(ConnectorError):
    """An outage lasted longer than `outage_limit_s`. The run ends with exit code 1, its messages stay open."""

    is_outage = False


class UnavailableAtStartError(ConnectorError):
    """What a spout reads was not available before its `next` had returned once: the start ends at once.

    A name that is wrong would be waited for without an end. Raised by the runtimes, with what the spout said.
    """

    is_outage = False


PROGRAMMING_ERRORS = (AttributeError, ImportError, NameError, NotImplementedError, SyntaxError, TypeError)
"""What code raises that is wrong, whatever is outside: no restart helps."""


class SpoutCodeError(ConnectorError):
    """The code of a spout is wrong (`PROGRAMMING_ERRORS`): the run ends at once, for a restart would meet it again."""

    is_outage = False

    @classmethod
    def of(cls, what: str, error: BaseException, where: str, *, next_step: str) -> SpoutCodeError:
        """The error for what it raised, which becomes the cause."""
        made = cls(
            f"{what}: {type(error).__name__}: {error}",
            where=where,
            expected="an error that may pass: this kind is of the code, so that no restart was tried",
            next_step=next_step,
        )
        made.__cause__ = error
        return made


class CheckpointError(TupletreeError):
    """The state directory is damaged, in use, or belongs to another topology; names the file and the way out."""


class ForeignCheckpointError(CheckpointError):
    """The state directory is intact, but this run cannot use it: another topology, runtime or format."""

    exit_code = 2  # starting again would not help


class RuntimeUnavailableError(TupletreeError):
    """This machine cannot run the runtime asked for (no Java, unsuited package); says how to fix it."""


class InternalError(TupletreeError):
    """An invariant of Tupletree itself broke: our bug, not yours."""


class ProcessingTimeoutError(BaseException):
    """Raised within a bolt's call that takes longer than `processing_timeout_s`, where it can be interrupted.

    It fails the tuple. No `Exception`, so that a loop that catches those does not go on for ever.
    """


class EndOfInput(Exception):  # noqa: N818 - a control signal like StopIteration, not an error
    """Raised by `Spout.next` when there will be no more messages."""


def is_outage(error: BaseException) -> bool:
    """Whether what was raised says that something outside is not available, so that no message is to blame."""
    return isinstance(error, ConnectorError) and error.is_outage
