"""OpenLineage: a run per execution, and below it a run for each of its routes.

Owns which events are sent, and their ids: a run's id is derived from the execution (and route), so that every process
of a pipeline speaks of the same runs. The datasets are queues: a route reads its inbound and writes its outbound ones.
A route starts with the first call that is known of an execution; all end when the ledger says that it is complete.

Needs the extra `openlineage`.
"""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from tupletree.errors import ConnectorError, needing
from tupletree.routes.lineage.stores import RecordStore
from tupletree.routes.messages import CallRecord

with needing("run events need the OpenLineage client", "openlineage"):
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, job_type_job, parent_run

NAMESPACE = "tupletree"
MAX_EXECUTIONS = 10_000
REST_S = 1.0
CLOSE_S = 5.0
"""How long the client may send what it still has."""

logger = logging.getLogger("tupletree.routes")
PRODUCER = "urn:tupletree"
_RUNS = uuid.UUID("6f6b8a52-1c6e-5c2c-9f57-2a4a1f0f6d0e")
_STATES = {"completed": RunState.COMPLETE, "cancelled": RunState.ABORT}


class RunEvents(RecordStore):
    """Takes records and sends events. It is a `RecordStore`: give it to a `LineageWriter`.

    Args:
        client: sends the events, to where it was configured.
        pipeline: its name; the name of the execution's job.
        routes: route → its inbound queue, its outbound ones.
        ended: completions that are to be heard of: id of the execution, its state in the ledger (`completed` is
            COMPLETE, `cancelled` ABORT, any other one FAIL), Unix time. Others append to it, in any thread.
    """

    most_rows = 1_000

    def __init__(
        self,
        client: OpenLineageClient,
        pipeline: str,
        *,
        routes: Mapping[str, tuple[str, Sequence[str]]] | None = None,
        ended: deque[tuple[str, str, float]] | None = None,
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._routes = routes or {}
        self._executions: OrderedDict[str, dict[str, str]] = OrderedDict()  # execution → route → its last error
        self._unsent: list[RunEvent] = []
        self._ended: deque[tuple[str, str, float]] = deque() if ended is None else ended
        self.where = "OpenLineage"

    def open(self) -> None:
        """See `RecordStore`. The client connects by itself."""

    def write(self, records: Sequence[CallRecord]) -> None:
        self._send()
        for record in records:
            if record.status != "skipped":
                for execution in record.executions or (record.execution,):
                    self._note(execution, record)
        with suppress(ConnectorError):  # they are kept, and sent before anything more is taken
            self._send()

    def rest(self, now_s: float) -> float:
        """See `RecordStore`: all records that came before a completion were taken, so its runs end."""
        del now_s
        while self._ended:
            execution, state, ended_s = self._ended.popleft()
            self._end(execution, state, ended_s)
        self._send()
        return REST_S

    def close(self) -> None:
        """See `RecordStore`. The client is closed, too: it may send in a thread of its own, and has connections."""
        with suppress(ConnectorError):
            self.rest(0.0)
        try:
            self._client.close(CLOSE_S)
        except Exception:
            logger.exception("the client of OpenLineage could not be closed")

    def _note(self, name: str, record: CallRecord) -> None:
        errors = self._executions.get(name)
        if errors is None:
            if len(self._executions) >= MAX_EXECUTIONS:
                self._executions.popitem(last=False)
            errors = self._executions[name] = {}
            self._unsent.append(self._event(RunState.START, record.started_s, name))
        if record.route not in errors:
            errors[record.route] = ""
            self._unsent.append(self._event(RunState.START, record.started_s, name, record.route))
        if record.status == "failed":
            errors[record.route] = f"{record.adapter}: {record.error}"

    def _end(self, name: str, state: str, ended_s: float) -> None:
        ends = _STATES.get(state, RunState.FAIL)
        errors = self._executions.pop(name, {})
        for route, error in errors.items():
            self._unsent.append(self._event(ends, ended_s, name, route, error if ends is RunState.FAIL else ""))
        last = next((error for error in reversed(errors.values()) if error), state)
        self._unsent.append(self._event(ends, ended_s, name, error=last if ends is RunState.FAIL else ""))

    def _send(self) -> None:
        while self._unsent:
            try:
                self._client.emit(self._unsent[0])
            except Exception as error:
                raise ConnectorError(
                    "run events cannot be sent",
                    where=self.where,
                    got=f"{type(error).__name__}: {error}",
                    next_step="see that its server runs and can be reached (OPENLINEAGE_URL)",
                ) from error
            del self._unsent[0]

    def _event(self, state: RunState, at_s: float, execution: str, route: str = "", error: str = "") -> RunEvent:
        facets: dict[str, object] = {}
        if route:
            facets["parent"] = parent_run.ParentRunFacet(
                run=parent_run.Run(runId=self._run_id(execution)),
                job=parent_run.Job(namespace=NAMESPACE, name=self._pipeline),
            )
        if error:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=error, programmingLanguage="python")
        queues = self._routes.get(route)
        return RunEvent(
            eventType=state,
            eventTime=datetime.fromtimestamp(at_s, UTC).isoformat(),
            run=Run(runId=self._run_id(execution, route), facets=facets),  # type: ignore[arg-type]  # facets of runs
            job=Job(
                namespace=NAMESPACE,
                name=f"{self._pipeline}.{route}" if route else self._pipeline,
                facets={
                    "jobType": job_type_job.JobTypeJobFacet(
                        processingType="STREAMING", integration="TUPLETREE", jobType="ROUTE" if route else "PIPELINE"
                    )
                },
            ),
            inputs=[InputDataset(NAMESPACE, queues[0])] if queues else [],
            outputs=[OutputDataset(NAMESPACE, queue) for queue in queues[1]] if queues else [],
            producer=PRODUCER,
        )

    def _run_id(self, execution: str, route: str = "") -> str:
        return str(uuid.uuid5(_RUNS, f"{self._pipeline}\0{execution}\0{route}"))
