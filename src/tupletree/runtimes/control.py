"""Status and control of a run from another process, through two places in its state directory.

`status.json` has the run's status; its process writes it every second. `control/ID.json` is a request: pause,
resume or drain; the process carries it out and takes the file away, which is the answer. Where a message is, is
answered by `answers/ID.json`. All of them are about the process that runs now, not about the whole run: nothing in here
is durable, and a request that was not accepted is dropped at the next start. Replays, which are durable, have an inbox
of their own (`deadletters`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tupletree.durable import DECODE_ERRORS, is_real_folder, private_folder, read_file, replace_file
from tupletree.errors import CheckpointError, ConfigError, RuntimeUnavailableError, TupletreeError
from tupletree.runtimes.api import Progress, RunHandle
from tupletree.runtimes.requests import RequestFolder
from tupletree.runtimes.threads import start_thread
from tupletree.texts import json_bytes, moment_text
from tupletree.tracking.facts import Fact

logger = logging.getLogger("tupletree.runtimes")

LOOK_EVERY_S = 0.25
WRITE_EVERY_S = 1.0
STALE_AFTER_S = 10.0
"""The process of an older status was killed, or is stuck."""

SHOWN_RECORDS = 20
"""Progress records in a status."""

REQUEST_MAX_BYTES = 4096
"""Nothing longer is a request, so another file in that folder costs no memory."""

MAX_DRAIN_S = 31_536_000.0
"""A year: the longest drain that may be requested."""

STATUS_MAX_BYTES = 64 * 1024 * 1024

FORMAT = 1

ControlRequest = Literal["pause", "resume", "drain"]

ANSWERS = "answers"
ANSWER_MAX_BYTES = 1024 * 1024
ANSWER_KEPT_S = 60.0
"""After that no process waits for an answer any more: the one that asked was killed."""

MAX_FACTS = 100


class Status(msgspec.Struct, kw_only=True):
    """The status of a run.

    Attributes:
        topology, runtime: what runs where.
        process, host: which process runs it.
        process_began: when that process began, in clock ticks of its machine; 0 where that is unknown.
        started_s, updated_s: of this process and of this status, since the Unix epoch.
        ended: whether the process has ended the run; the numbers are final then.
        resumes: see `Summary`.
        error: what made the run fail; empty if nothing did.
        progress: see `Progress`.
        recent: the last `ProgressRecord`s of the process, oldest first.
    """

    topology: str
    runtime: str
    process: int
    host: str
    started_s: float
    updated_s: float
    ended: bool = False
    resumes: bool = True
    error: str = ""
    progress: dict[str, Any] = {}
    recent: list[dict[str, Any]] = []
    process_began: int = 0
    format: int = FORMAT

    def is_alive(self, now_s: float) -> bool:
        """Whether its process is still there; on this machine the process itself is checked, too."""
        if self.ended:
            return False
        if self.host == socket.gethostname() and self.process_began:
            # Independent of the clock. Another process that has the same number now began at another time.
            return began(self.process) == self.process_began
        return not self.is_old(now_s)

    def is_old(self, now_s: float) -> bool:
        """Whether a process that is at work, and can write here, would have written it again by now."""
        # One from the future was written before the clock was set back.
        return abs(now_s - self.updated_s) >= STALE_AFTER_S


class _StoredRequest(msgspec.Struct, forbid_unknown_fields=True):
    request: ControlRequest | Literal["whereabouts"]
    drain_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_DRAIN_S)] | None = None
    message: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    format: int = FORMAT


def _control_of(state_dir: Path) -> RequestFolder[_StoredRequest]:
    return RequestFolder(
        state_dir / "control",
        _StoredRequest,
        REQUEST_MAX_BYTES,
        next_step="ask with `tupletree pause`, `resume` or `drain` of the version that runs it",
        fault_of=lambda _, request: "" if request.format == FORMAT else f"it has format {request.format}, not {FORMAT}",
    )


# --- in the process of the run ------------------------------------------------------------------------------------


class RunControl:
    """Writes the status of a run and executes requests, on a thread of its own from `begin` to `finish`.

    Args:
        handle: the run; its methods are called from that thread.
        topology, runtime: for the status.
    """

    def __init__(self, handle: RunHandle, topology: str, runtime: str) -> None:
        self._handle = handle
        self._topology = topology
        self._runtime = runtime
        self._started_s = time.time()
        self._next_write_s = 0.0
        self._warned = False
        self._control = _control_of(handle.state_dir)
        self._accepted: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"tupletree-{topology}-control", daemon=True)

    def begin(self) -> None:
        """Drop requests that were meant for an earlier process, and start."""
        for request_id in self._control.take():
            self._forget(request_id)
        answers = self._handle.state_dir / ANSWERS
        for left in answers.glob("*.json") if is_real_folder(answers) else ():
            with contextlib.suppress(OSError):  # what is no file is none of ours, and is not read
                left.unlink()
        self._write()
        start_thread(self._thread)

    def finish(self, error: BaseException | None) -> None:
        """Write the last status: the run has ended, by this error if it failed. To be called before `wait` returns."""
        self._ended.set()
        self._thread.join()
        self._write(ended=True, error="" if error is None else str(error))

    def _main(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            try:
                self._look_around()
            except Exception:  # the thread must go on for the next request
                logger.exception("looking for requests of other processes failed")

    def _look_around(self) -> None:
        for request_id, request in self._control.take().items():
            if request_id not in self._accepted:
                self._handle_request(request_id, request)
        if time.monotonic() >= self._next_write_s:
            self._write()

    def _handle_request(self, request_id: str, request: _StoredRequest) -> None:
        if request.request != "whereabouts":
            logger.info("another process asked to %s", request.request)
        try:
            if request.request == "whereabouts":
                self._answer(request_id, request.message)
            else:
                self._execute(request)
        except Exception:
            logger.exception("another process asked to %s, which failed", request.request)
        self._forget(request_id)

    def _execute(self, request: _StoredRequest) -> None:
        if request.request == "drain":
            # `drain` waits for the end of the run, and `finish` for this thread.
            limit_s = request.drain_timeout_s
            threading.Thread(target=self._handle.drain, args=(limit_s,), name="tupletree-drain", daemon=True).start()
        else:
            (self._handle.pause if request.request == "pause" else self._handle.resume)()

    def _answer(self, request_id: str, message: str) -> None:
        folder = private_folder(self._handle.state_dir / ANSWERS)
        for left in folder.glob("*.json*"):  # also drafts
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > ANSWER_KEPT_S:
                    left.unlink()
        facts = self._handle.whereabouts(message)
        replace_file(folder / f"{request_id}.json", json_bytes(facts[:MAX_FACTS]), lasts=False)

    def _forget(self, request_id: str) -> None:
        """Remove a request; it is executed at most once, even if it cannot be removed."""
        self._accepted.add(request_id)
        try:
            self._control.remove(request_id)
        except OSError as error:
            logger.warning("an executed request of another process cannot be removed: %s", error)

    def _write(self, *, ended: bool = False, error: str = "") -> None:
        self._next_write_s = time.monotonic() + WRITE_EVERY_S
        status = Status(
            topology=self._topology,
            runtime=self._runtime,
            process=os.getpid(),
            process_began=began(os.getpid()),
            host=socket.gethostname(),
            started_s=self._started_s,
            updated_s=time.time(),
            ended=ended,
            resumes=self._handle.resumes,
            error=error,
            progress=asdict(self._handle.progress()),
            recent=[msgspec.to_builtins(one) for one in self._handle.recent_progress()[-SHOWN_RECORDS:]],
        )
        try:
            replace_file(self._handle.state_dir / "status.json", json_bytes(status), lasts=False)
        except OSError as fault:
            if not self._warned:
                self._warned = True
                logger.warning("the status cannot be written, so `tupletree status` shows an old one: %s", fault)


def began(process: int) -> int:
    """When a process of this machine began, in clock ticks since its start; 0: no such process, or no /proc."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in {"Z", "X"} else int(fields[19])


# --- in any other process -------------------------------------------------------------------------------------------


def status_of(state_dir: Path) -> Status:
    """The status of a run, or the last one of its last process.

    Raises:
        ConfigError: this is no state directory of a run.
        CheckpointError: its status cannot be read.
    """
    path = state_dir / "status.json"
    try:
        return msgspec.json.decode(read_file(path, STATUS_MAX_BYTES), type=Status)
    except FileNotFoundError as error:
        raise ConfigError(
            "there is no status of a run here", where=str(state_dir), expected="the --state-dir of a run"
        ) from error
    except (OSError, *DECODE_ERRORS) as error:
        raise CheckpointError(
            "the status of a run cannot be read",
            where=str(path),
            got=str(error),
            next_step="use the version and the user of Tupletree that run it",
        ) from error


def send_request(
    state_dir: Path,
    request: ControlRequest,
    *,
    drain_timeout_s: float | None = None,
    wait_s: float = 10.0,
) -> Status:
    """Ask the process of a run for something, and wait until it has accepted it.

    Args:
        state_dir: of the run.
        request: what to do.
        drain_timeout_s: how long a drain may take; None: as its options say.
        wait_s: how long to wait until the process has accepted it.

    Raises:
        ConfigError: the time is out of bounds, or this is no state directory of a run.
        RuntimeUnavailableError: no process runs it, or it does not answer; the request is withdrawn.
        CheckpointError: nothing can be written there.
    """
    if drain_timeout_s is not None and not 0 <= drain_timeout_s <= MAX_DRAIN_S:
        raise ConfigError(
            "this is not a time that a drain may take",
            got=f"{drain_timeout_s:g} s",
            expected=f"0 to {MAX_DRAIN_S:.0f} s (a year)",
        )
    status = status_of(state_dir)
    if not status.is_alive(time.time()):
        raise _no_process(state_dir, status)
    if not _leave(state_dir, uuid.uuid4().hex, _StoredRequest(request, drain_timeout_s), wait_s):
        raise _no_process(state_dir, status_of(state_dir))
    return status_of(state_dir)


def where(state_dir: Path, message: str, *, wait_s: float = 5.0) -> list[Fact]:
    """Ask the process of a run where an open message is; empty if no process runs it or answers.

    Raises:
        CheckpointError: nothing can be written there.
    """
    try:
        is_alive = status_of(state_dir).is_alive(time.time())
    except TupletreeError:
        return []  # a state directory of before, or of a run that ended before it began
    request_id = uuid.uuid4().hex
    if not is_alive or not _leave(state_dir, request_id, _StoredRequest("whereabouts", message=message), wait_s):
        return []
    answer = state_dir / ANSWERS / f"{request_id}.json"
    try:
        return msgspec.json.decode(read_file(answer, ANSWER_MAX_BYTES), type=list[Fact])
    except (OSError, *DECODE_ERRORS):
        return []  # it could not be written there; the log of the run says why
    finally:
        with contextlib.suppress(OSError):
            answer.unlink(missing_ok=True)


def _leave(state_dir: Path, request_id: str, request: _StoredRequest, wait_s: float) -> bool:
    """Leave a request; whether it was accepted in that time. If not, it is withdrawn."""
    folder = state_dir / "control"
    path = _control_of(state_dir).path_of(request_id)
    try:
        private_folder(folder)
        replace_file(path, msgspec.json.encode(request), lasts=False)
    except OSError as error:
        raise CheckpointError(
            "the request cannot be written",
            where=str(folder),
            got=str(error),
            expected="a folder that this user may write to",
            next_step="use the user that runs it; remove what is in the place of the folder",
        ) from error
    until_s = time.monotonic() + wait_s
    while path.exists():
        if time.monotonic() >= until_s:
            path.unlink(missing_ok=True)
            return False
        time.sleep(LOOK_EVERY_S / 5)  # the other process removes the file; there is no other sign
    return True


def _no_process(state_dir: Path, status: Status) -> TupletreeError:
    ended = "ended" if status.ended else "had its last heartbeat"
    words = "--runtime local --durable " if status.runtime == "local" else ""
    return RuntimeUnavailableError(
        "no process runs this topology now",
        where=str(state_dir),
        got=f"process {status.process} on {status.host}, which {ended} at {moment_text(status.updated_s)}",
        next_step=(
            f"start it: tupletree run TARGET {words}--state-dir {state_dir}"
            if status.resumes
            else "start a new one: tupletree run TARGET --runtime local (a local run is resumed only if it is durable)"
        ),
    )


def progress_in(status: Status) -> Progress:
    """The numbers of a status; those that only another version knows are left out.

    Raises CheckpointError if they are not what a run writes.
    """
    try:
        return msgspec.convert(status.progress, Progress)
    except DECODE_ERRORS as error:
        raise CheckpointError(
            "the status of this run cannot be read",
            got=str(error),
            next_step="a run that goes on writes it anew within a second; else it has been changed",
        ) from error
