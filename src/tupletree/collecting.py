"""Calls with a `Collector`: bolts that emit, anchor, ack and fail by hand.

Owns the handles of tuples that are not settled yet. A tuple is named by the very object that was handed to the bolt;
where one object was delivered twice, its deliveries are settled one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tupletree.effects import Output, StateCell, TaskPlace, Worked
from tupletree.errors import ProcessingError, TupleSettledError
from tupletree.failing import FailureMaker, safe_text, wrong_type
from tupletree.frames import Frame, Root, all_failed, join_segments, roots_of
from tupletree.topology.model import ComponentSpec

__all__ = ["CollectingCall"]


@dataclass(slots=True)
class _Delivery:
    """One tuple in the bolt's hands. `frame` counts what is unsettled per root of the frame it came in."""

    value: Any
    root: Root
    frame_id: int
    unsettled: dict[int, int]


@dataclass(slots=True)
class _Emitted:
    value: Any
    root: Root
    stream: str
    direct_task: int | None


class CollectingCall:
    """Runs frames through a bolt that has a collector, for one task."""

    def __init__(self, component: ComponentSpec, place: TaskPlace, fail: FailureMaker) -> None:
        self._returns = component.body.returns
        self._auto_ack = component.body.auto_ack
        self._auto_fail = component.body.auto_fail
        self._streams = {stream.name: stream.schema.cls for stream in component.outputs.values()}
        self._place = place
        self._fail = fail
        self._open: dict[int, list[_Delivery]] = {}
        self._current: _Delivery | None = None
        self._emitted: list[_Emitted] = []
        self._worked = Worked()
        self._done: dict[int, list[int]] = {}
        self.collector = _Collector(self)

    def run(
        self,
        frame: Frame,
        call: Callable[[Any], Any],
        state: StateCell | None,
        keys: Sequence[Any] | None,
        worked: Worked,
    ) -> None:
        """Call the bolt for every tuple of the frame and add what came of it to `worked`."""
        self._worked, self._emitted, self._done = worked, [], {}
        unsettled: dict[int, int] = {}
        deliveries: list[_Delivery] = []
        for root, values in frame.segments():
            for one in roots_of(root):
                unsettled[one] = unsettled.get(one, 0) + len(values)
            deliveries.extend(_Delivery(value, root, frame.id, unsettled) for value in values)
        for index, delivery in enumerate(deliveries):
            if all_failed(delivery.root, worked.failures):
                continue
            if state is None or keys is None:
                self._one(delivery, call)
            else:
                key = keys[index]
                state.key = key
                state.value = held = state.changed[key] if key in state.changed else state.load(key)
                self._one(delivery, call)
                if state.value is not held:
                    state.changed[key] = state.value
        self._place.root = 0
        self._finish()

    def unsettled(self) -> list[int]:
        """Roots of the tuples that are neither acked nor failed, each once."""
        held = (delivery for deliveries in self._open.values() for delivery in deliveries)
        return list(dict.fromkeys(root for delivery in held for root in roots_of(delivery.root)))

    def _one(self, delivery: _Delivery, call: Callable[[Any], Any]) -> None:
        self._open.setdefault(id(delivery.value), []).append(delivery)
        self._current = delivery
        self._place.root = delivery.root
        mark = len(self._emitted)
        try:
            result = call(delivery.value)
            if result is not None:
                for value in self._results(result):
                    self.emit(value, None, None, None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            del self._emitted[mark:]
            if self._auto_fail or not isinstance(error, Exception):
                self._fail_now(delivery, error)
        else:
            if self._auto_ack and self._is_open(delivery):
                self._settle(delivery)
        finally:
            self._current = None

    def _results(self, result: Any) -> Iterable[Any]:
        if self._returns == "many" or hasattr(result, "__next__"):
            return result  # type: ignore[no-any-return]  # the bolt's own iterable
        return (result,)

    def _is_open(self, delivery: _Delivery) -> bool:
        return any(delivery is one for one in self._open.get(id(delivery.value), ()))

    def _settle(self, delivery: _Delivery) -> None:
        """Take the delivery out, and name the root as done once all its tuples of the frame are settled."""
        deliveries = [one for one in self._open[id(delivery.value)] if one is not delivery]
        if deliveries:
            self._open[id(delivery.value)] = deliveries
        else:
            del self._open[id(delivery.value)]
        for root in roots_of(delivery.root):
            delivery.unsettled[root] -= 1
            if delivery.unsettled[root] == 0:
                self._done.setdefault(delivery.frame_id, []).append(root)

    def _fail_now(self, delivery: _Delivery, error: BaseException | str | None) -> None:
        if not self._is_open(delivery):
            self._worked.late_verdicts += 1
            return
        self._settle(delivery)
        self._fail.note(self._worked.failures, delivery.root, delivery.value, error)

    def _finish(self) -> None:
        """Turn what was emitted into outputs, without what belongs only to failed roots."""
        failed = self._worked.failures
        by_target: dict[tuple[str, int | None], list[tuple[Root, list[Any]]]] = {}
        for emitted in self._emitted:
            if not all_failed(emitted.root, failed):
                pieces = by_target.setdefault((emitted.stream, emitted.direct_task), [])
                pieces.append((emitted.root, [emitted.value]))
        for (stream, direct_task), pieces in by_target.items():
            values, roots, ends = join_segments(pieces)
            self._worked.outputs.append(Output(stream, values, roots, ends, direct_task))
        for frame_id, settled in self._done.items():
            done: list[Root] = [root for root in settled if root not in failed]
            if done:
                self._worked.done.append((frame_id, done))

    # What the user's collector asks for.

    def emit(self, value: Any, anchors: Sequence[object] | None, stream: str | None, direct_task: int | None) -> None:
        """See `Collector.emit`."""
        name = self._stream_for(value, stream)
        if anchors is None:
            if self._current is None:
                raise ProcessingError(
                    "an emit outside a call has no tuple to anchor to",
                    where=self._place.component,
                    next_step="pass anchors=[...], or anchors=() for an unanchored tuple",
                )
            anchors = (self._current.value,)
        found: dict[int, None] = {}
        for anchor in anchors:
            deliveries = self._open.get(id(anchor))
            if not deliveries:
                raise TupleSettledError(
                    "emit anchored to a tuple that is not open: it was acked or failed, or never handed to this task",
                    where=self._place.component,
                    got=safe_text(anchor, 200),
                    next_step="emit before you ack, or anchor to the tuples that are still open",
                )
            # Two anchors with one root make one edge: a root is named once however often it is anchored to.
            found.update(dict.fromkeys(roots_of(deliveries[0].root)))
        anchored = tuple(found)
        root: Root = anchored[0] if len(anchored) == 1 else anchored or 0
        self._emitted.append(_Emitted(value, root, name, direct_task))

    def _stream_for(self, value: Any, stream: str | None) -> str:
        if stream is not None:
            if self._streams.get(stream) is not type(value):
                expected = ", ".join(f"{name}: {cls.__name__}" for name, cls in self._streams.items())
                raise wrong_type(value, f"a declared stream and its class ({expected or 'none'}); asked: {stream!r}")
            return stream
        for name, cls in self._streams.items():
            if type(value) is cls:
                return name
        raise wrong_type(value, " or ".join(cls.__name__ for cls in self._streams.values()) or "nothing")

    def ack(self, value: object) -> None:
        """See `Collector.ack`."""
        deliveries = self._open.get(id(value))
        if deliveries:
            self._settle(deliveries[0])
        else:
            self._worked.late_verdicts += 1

    def fail(self, value: object, error: BaseException | str | None) -> None:
        """See `Collector.fail`."""
        deliveries = self._open.get(id(value))
        if deliveries:
            self._fail_now(deliveries[0], error)
        else:
            self._worked.late_verdicts += 1

    def extend(self, value: object) -> None:
        """See `Collector.reset_timeout`."""
        for delivery in self._open.get(id(value), ()):
            self._worked.extended.extend(roots_of(delivery.root))


class _Collector:
    """The object that user code holds; see `tupletree.topology.components.Collector`."""

    def __init__(self, calls: CollectingCall) -> None:
        self._calls = calls

    def emit(self, value: Any, *, anchors: Sequence[object] | None = None, stream: str | None = None) -> None:
        self._calls.emit(value, anchors, stream, None)

    def emit_direct(
        self, task_id: int, value: Any, *, anchors: Sequence[object] | None = None, stream: str | None = None
    ) -> None:
        self._calls.emit(value, anchors, stream, task_id)

    def ack(self, value: object) -> None:
        self._calls.ack(value)

    def fail(self, value: object, error: BaseException | str | None = None) -> None:
        self._calls.fail(value, error)

    def reset_timeout(self, value: object) -> None:
        self._calls.extend(value)
