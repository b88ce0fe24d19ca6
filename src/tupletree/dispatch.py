"""Dispatch: one frame in, effects out. The work of a bolt's task, the same in every runtime.

A `BoltTask` calls the user's code for each tuple of a frame and says what came of it: outputs per stream (not yet
routed), which (frame, root) pairs are done, which roots failed and why, which stay open. It refuses to know threads,
clocks, rings or Spark: a runtime hands in frames, state cells and context, and carries the effects out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tupletree.collecting import CollectingCall
from tupletree.effects import Output, StateCell, TaskPlace, Worked
from tupletree.failing import FailureMaker, wrong_type
from tupletree.frames import Frame, Root, all_failed, done_roots, join_segments, segments_of, select, without
from tupletree.topology.components import Bolt
from tupletree.topology.model import BoltSpec, ComponentSpec

__all__ = ["BoltTask"]


class BoltTask:
    """One task of a bolt: opened once, fed frames, closed once. Not thread-safe.

    Args:
        component: the bolt.
        place: its context object.
        state: the state cell if the bolt declares state.
        key_functions: (component, stream) of an input → function tuples → canonical keys; only read with state.
    """

    def __init__(
        self,
        component: ComponentSpec,
        place: TaskPlace,
        state: StateCell | None = None,
        key_functions: Mapping[tuple[str, str], Callable[[list[Any]], list[Any]]] | None = None,
    ) -> None:
        self._spec: BoltSpec = component.body
        self._place = place
        self._state = state
        self._keys = key_functions or {}
        self._stream_of = {stream.schema.cls: name for name, stream in component.outputs.items()}
        self._fail = FailureMaker(component.name, place.task_id)
        self._bolt: Bolt[Any] | None = None
        self._collecting: CollectingCall | None = None
        # The commonest stateful bolt, `fn(value, state)`, is called as it is; others through what `_prepare` binds.
        self._keyed_call: Callable[[Any, Any], Any] = lambda value, _: self._call(value)
        self._call: Callable[[Any], Any] = self._prepare(component)

    def _prepare(self, component: ComponentSpec) -> Callable[[Any], Any]:
        """Bind what is injected, so that the loops below call one function with one argument."""
        spec = self._spec
        if spec.style == "class":
            self._bolt = spec.target()
            self._collecting = CollectingCall(component, self._place, self._fail)
            for name, what in spec.inject.items():
                setattr(self._bolt, name, self._injected(what, component))
            process, collector = self._bolt.process, self._collecting.collector
            return lambda value: process(value, collector)
        if "collector" in spec.inject.values():
            self._collecting = CollectingCall(component, self._place, self._fail)
        injected = {name: self._injected(what, component) for name, what in spec.inject.items()}
        target, parameter = spec.target, spec.value_parameter
        if not injected:
            return target
        if [*spec.inject.values()] == ["state"] and _parameter_names(target) == (parameter, *spec.inject):
            self._keyed_call = target
        if _parameter_names(target) == (parameter, *injected):
            rest = tuple(injected.values())
            return lambda value: target(value, *rest)
        return lambda value: target(**{parameter: value}, **injected)

    def _injected(self, what: str, component: ComponentSpec) -> object:
        if what == "state":
            return self._state
        if what == "context":
            return self._place
        if what == "collector":
            assert self._collecting is not None
            return self._collecting.collector
        return component.resources[what.removeprefix("resource:")]

    def open(self) -> None:
        """Open a class bolt; whatever it raises comes out."""
        if self._bolt is not None:
            self._bolt.open(self._place)

    def close(self) -> None:
        """Close a class bolt."""
        if self._bolt is not None:
            self._bolt.close()

    def work(self, frame: Frame) -> Worked:
        """Process every tuple of the frame. Exceptions of user code become failures of their roots."""
        worked = Worked()
        keys = self._keys_of(frame, worked) if self._state is not None else None
        if worked.failures:
            frame = without(frame, worked.failures)
            keys = self._keys_of(frame, worked)
        if self._collecting is not None:
            self._collecting.run(frame, self._call, self._state, keys, worked)
        elif self._state is None or keys is None:
            self._run_stateless(frame, worked)
        else:
            self._run_keyed(frame, keys, self._state, worked)
        return worked

    def unsettled(self) -> list[int]:
        """Roots of tuples that the bolt neither acked nor failed so far."""
        return self._collecting.unsettled() if self._collecting is not None else []

    def _keys_of(self, frame: Frame, worked: Worked) -> list[Any]:
        keys_of = self._keys[frame.component, frame.stream]
        try:
            return keys_of(frame.values)
        except Exception:  # noqa: BLE001 - user code may raise anything
            for root, values in frame.segments():
                for value in values:
                    try:
                        keys_of([value])
                    except Exception as error:  # noqa: BLE001 - user code may raise anything
                        self._fail.note(worked.failures, root, value, error)
            return []

    def _run_stateless(self, frame: Frame, worked: Worked) -> None:
        """The hot loop of bolts without collector and state: call, gather, drop what a failing root emitted."""
        out: list[Any] = []
        out_roots: list[Root] = []
        out_ends: list[int] = []
        call, place, values = self._call, self._place, frame.values
        add: Callable[[Any], None] = out.extend if self._spec.returns == "many" else out.append
        start = index = mark = 0
        for root, end in zip(frame.roots, frame.ends, strict=True):
            place.root = root
            try:
                for index in range(start, end):
                    result = call(values[index])
                    if result is not None:
                        add(result)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                # GeneratorExit, SystemExit and CancelledError are the user's failures here, not ours to obey.
                del out[mark:]
                self._fail.note(worked.failures, root, values[index], error)
            else:
                if len(out) > mark:
                    mark = len(out)
                    out_roots.append(root)
                    out_ends.append(mark)
            start = end
        place.root = 0
        self._finish(frame, out, out_roots, out_ends, worked)

    def _run_keyed(self, frame: Frame, keys: list[Any], state: StateCell, worked: Worked) -> None:
        """The hot loop of bolts with keyed state: as above, with each tuple's value put in hand and taken back."""
        out: list[Any] = []
        out_roots: list[Root] = []
        out_ends: list[int] = []
        call, place, values = self._keyed_call, self._place, frame.values
        changed, load = state.changed, state.load
        add: Callable[[Any], None] = out.extend if self._spec.returns == "many" else out.append
        start = index = mark = 0
        for root, end in zip(frame.roots, frame.ends, strict=True):
            place.root = root
            try:
                for index in range(start, end):
                    key = keys[index]
                    state.key = key
                    state.value = held = changed[key] if key in changed else load(key)
                    result = call(values[index], state)
                    if result is not None:
                        add(result)
                    if state.value is not held:
                        changed[key] = state.value
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                del out[mark:]
                self._fail.note(worked.failures, root, values[index], error)
            else:
                if len(out) > mark:
                    mark = len(out)
                    out_roots.append(root)
                    out_ends.append(mark)
            start = end
        place.root = 0
        self._finish(frame, out, out_roots, out_ends, worked)

    def _finish(self, frame: Frame, out: list[Any], roots: list[Root], ends: list[int], worked: Worked) -> None:
        self._sort_streams(out, roots, ends, worked)
        worked.done.append((frame.id, done_roots(frame, worked.failures)))

    def _sort_streams(self, out: list[Any], roots: list[Root], ends: list[int], worked: Worked) -> None:
        """One output per stream; values of a class that no stream carries fail their root."""
        if not out:
            return
        classes = set(map(type, out))
        unknown = classes - self._stream_of.keys()
        if unknown:
            expected = " or ".join(sorted(cls.__name__ for cls in self._stream_of)) or "nothing: it has no outputs"
            out, roots, ends = self._drop_unknown(out, roots, ends, expected, worked)
            classes -= unknown
        for cls in sorted(classes, key=lambda cls: self._stream_of[cls]):
            if len(classes) == 1:
                worked.outputs.append(Output(self._stream_of[cls], out, roots, ends))
                continue
            picked, picked_roots, picked_ends = select(out, roots, ends, partial(_is_exactly, cls))
            worked.outputs.append(Output(self._stream_of[cls], picked, picked_roots, picked_ends))

    def _drop_unknown(
        self, out: list[Any], roots: list[Root], ends: list[int], expected: str, worked: Worked
    ) -> tuple[list[Any], list[Root], list[int]]:
        for root, values in segments_of(out, roots, ends):
            for value in values:
                if type(value) not in self._stream_of:
                    self._fail.note(worked.failures, root, value, wrong_type(value, expected))
                    break
        bad = worked.failures.keys()
        pieces = [(root, values) for root, values in segments_of(out, roots, ends) if not all_failed(root, bad)]
        return join_segments(pieces)


def _is_exactly(cls: type, value: object) -> bool:
    return type(value) is cls


def _parameter_names(target: Callable[..., Any]) -> tuple[str, ...]:
    code = getattr(target, "__code__", None)
    return code.co_varnames[: code.co_argcount] if code is not None else ()
