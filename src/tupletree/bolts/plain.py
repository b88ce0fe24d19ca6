"""Plain bolts: one frame in, effects out. The work of a bolt's task, the same in every runtime.

A `BoltTask` calls the user's code for each tuple of a frame and reports the effects: outputs per stream (not yet
routed), which (frame, root) pairs are done, which roots failed and why, which stay open. It does not know threads,
clocks, rings or Spark: a runtime hands in frames, state cells and context, and carries the effects out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, compress, islice
from operator import gt, length_hint
from types import GeneratorType
from typing import Any

from tupletree.bolts.call_retry import checking, retrying_call, to_its_end
from tupletree.bolts.chunks import CHECK, FIRST, Chunks
from tupletree.bolts.collector import CollectorCall
from tupletree.bolts.effects import Outlet, Output, StateCell, TaskPlace, Worked, put_in_hand
from tupletree.bolts.failures import FailureMaker, wrong_type
from tupletree.data.frames import (
    UNTRACKED,
    Frame,
    Root,
    all_failed,
    apart,
    done_roots,
    join_segments,
    rest_of,
    roots_of,
    segments_of,
    select,
    without,
)
from tupletree.errors import InternalError
from tupletree.topology.components import Bolt, Tick
from tupletree.topology.model import BoltSpec, ComponentSpec
from tupletree.topology.states import view_of

TICK_STREAM = "__tick"


# More than 12 attributes: each is looked up once, because calls go by the thousand.
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
        self._fail = FailureMaker(component.name, place.task_id, component.retry)
        self._bolt: Bolt[Any] | None = None
        self._is_wrapped = False
        self._retries_calls = True  # here, and not in whatever makes the calls for it
        self._rest: Frame | None = None  # what an outage left
        self._collector_call: CollectorCall | None = None
        # The commonest stateful bolt, `fn(value, state)`, is called as it is; others through what `_prepare` binds.
        self._keyed_call: Callable[[Any, Any], Any] = lambda value, _: self._call(value)
        self._component = component
        # Only a CollectingCall knows tuples that stay open when the call is over.
        if self._spec.can_collect or not (self._spec.auto_ack and self._spec.auto_fail):
            self._collector_call = CollectorCall(component, place, self._fail)
        self._call: Callable[[Any], Any] = self._prepare() if self._spec.style == "function" else _not_open

    def open(self) -> None:
        """Make and open a class bolt; raises what it raises; `close` must be called all the same."""
        if self._spec.style != "class":
            return
        bolt: Bolt[Any] = self._spec.target()
        self._bolt = bolt
        for name, what in self._spec.inject.items():
            setattr(bolt, name, self._injected(what))
        process = self._method(bolt.process)
        self._call = process
        if self._spec.takes_collector:
            collector = self._injected("collector")
            self._call = lambda value: process(value, collector)
        self._method(bolt.open)(self._place)

    def put_behind(self, behind: Callable[[Iterable[int]], Iterable[int]]) -> None:
        """Messages that wait for one that fails are not called: see `FailureMaker.behind`."""
        self._fail.behind = behind

    def leave_early(self, tell: Callable[[Callable[[], Worked]], None]) -> None:
        """Report calls that take long while they run; see `CollectorCall.leave_early`."""
        if self._collector_call is not None:
            self._collector_call.leave_early = tell

    def out_of_call(self) -> Worked:
        """What threads of the bolt asked of its collector since its last call, and is not done: strays only."""
        worked = Worked()
        if self._collector_call is not None:
            self._collector_call.tell_out_of_call(worked)
        return worked

    def close(self) -> None:
        """Close a class bolt."""
        if self._bolt is not None:
            self._method(self._bolt.close)()

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """How a method of a class bolt is called."""
        return method

    def _prepare(self) -> Callable[[Any], Any]:
        """Bind what is injected, so that the loops below call one function with one argument."""
        spec = self._spec
        injected = {name: self._injected(what) for name, what in spec.inject.items()}
        target, parameter = spec.target, spec.value_parameter
        if not injected:
            return target
        is_bare = [*spec.inject.values()] == ["state"] and self._injected("state") is self._state  # and no view of it
        if is_bare and _parameter_names(target) == (parameter, *spec.inject):
            self._keyed_call = target
        if _parameter_names(target) == (parameter, *injected):
            rest = tuple(injected.values())
            return lambda value: target(value, *rest)
        return lambda value: target(**{parameter: value}, **injected)

    def _injected(self, what: str) -> object:
        if what == "state":
            return view_of(self._spec.state, self._state) if self._spec.state is not None else None
        if what == "context":
            return self._place
        if what == "collector":
            assert self._collector_call is not None
            return self._collector_call.collector
        return self._component.resources[what.removeprefix("resource:")]

    def work(self, frame: Frame) -> Worked:
        """Process every tuple of the frame.

        What user code raises fails the roots of the tuple in hand, and the rest of a failed root is not worked.
        No exception of the user's code is raised here, of any class.
        """
        (worked,) = self.parts(frame, None)
        return worked

    def resume(self) -> Worked:
        """As `work`, for what an outage left: the call that met it is made again, then those for the other tuples."""
        (worked,) = self.resume_parts(None)
        return worked

    def resume_parts(self, outlet: Outlet | None) -> Iterator[Worked]:
        """As `resume`, in chunks."""
        rest, self._rest = self._rest, None
        if rest is not None:
            yield from self.parts(rest, outlet)
            return
        worked = Worked()
        if self._collector_call is not None:
            time_s = self._place.epoch_time_s
            yield from self._collector_call.resume_parts(self._call, self._state, time_s, worked, outlet)
        yield worked

    def waiting(self) -> list[int]:
        """Roots of the tuples that an outage left."""
        if self._rest is not None:
            return [one for root in self._rest.roots for one in roots_of(root)]
        return self._collector_call.waiting() if self._collector_call is not None else []

    def _meets(self, error: BaseException, frame: Frame, worked: Worked, *, may_wait: bool = True) -> bool:
        """Whether a call met an outage, so that its tuple and those behind it wait. A tick is not repeated."""
        if not (may_wait and self._place.takes_as_outage(error) and self._place.waits and frame.stream != TICK_STREAM):
            return False
        worked.outage = error
        return True

    def _leave(
        self,
        frame: Frame,
        segment: tuple[Root, int],
        index: int,
        worked: Worked,
        out: tuple[list[Any], list[Root], list[int]],
        given: int,
    ) -> Frame:
        """Keep what is left of a frame, from this tuple on; returns a frame that stands for what is done.

        Args:
            frame: the frame.
            segment: root and end of the one in which an outage was met.
            index: the tuple whose call met it.
            worked: of the frame; `outage` is set.
            out: what was emitted, laid out without this segment.
            given: how much of it was emitted by calls that ended.
        """
        (root, end), (values, roots, ends) = segment, out
        mark = ends[-1] if ends else 0
        del values[max(mark, given) :]
        if len(values) > mark:
            roots.append(root)
            ends.append(len(values))
        rest, done = rest_of(frame, end, index)
        self._rest = without(rest, worked.failures)
        return Frame(frame.task, frame.component, frame.stream, [], [*done], [], frame.id)

    def parts(self, frame: Frame, outlet: Outlet | None) -> Iterator[Worked]:
        """As `work`, in chunks: the last of them says what is done and what failed.

        What a part holds is to be carried out before the next is asked for. It may hold tuples of a root that fails
        in a later part, but none of a call that failed.

        Args:
            frame: the frame.
            outlet: takes what one call emits that is too much for a part; None: there is only the last.
        """
        worked = Worked()
        frame, keys = self._begin(frame, worked)
        if self._collector_call is not None:
            yield from self._collector_call.parts(frame, self._call, self._state, keys, worked, outlet)
        elif outlet is not None and self._spec.returns == "many":
            yield from self._run_in_parts(apart(frame), keys, worked, outlet)
        else:
            self._run(frame, keys, worked)
        yield worked

    def _begin(self, frame: Frame, worked: Worked) -> tuple[Frame, list[Any] | None]:
        """The tuples that can be worked, with their keys if the bolt has state."""
        if self._call is _not_open:
            raise InternalError("a class bolt was given a frame before it was opened", where=frame.component)
        keys: list[Any] | None = None
        self._place.frame = frame
        if self._state is not None:
            frame, keys = self._with_keys(frame, worked)
            self._state.prepare(keys, self._place.epoch_time_s)
        if not self._is_wrapped:
            self._wrap_calls()
        return frame, keys

    def _run(self, frame: Frame, keys: list[Any] | None, worked: Worked) -> None:
        frame = apart(frame)
        is_of_singles = len(frame.roots) == len(frame.values)
        if self._state is None or keys is None:
            (self._run_singles if is_of_singles else self._run_stateless)(frame, worked)
        elif is_of_singles:
            self._run_keyed_singles(frame, keys, self._state, worked)
        else:
            self._run_keyed(frame, keys, self._state, worked)

    def _wrap_calls(self) -> None:
        """Do around each call what this run asks for beyond it: mostly nothing."""
        self._is_wrapped = True
        state, before = self._state, self._call
        if self._place.before_call is not None:
            self._call = _waiting_call(before, self._place.before_call)
        if self._place.calls > 1 and self._retries_calls and self._collector_call is None:
            call = to_its_end(self._call) if self._spec.returns == "many" else self._call
            self._call = retrying_call(call, self._place, state.savepoint if state is not None else None)
        if state is not None and state.check is not None:
            self._call = checking(self._call, state, state.check)
        if self._call is not before:
            wrapped = self._call
            self._keyed_call = lambda value, _: wrapped(value)

    def tick(self, time_s: float) -> Worked:
        """Tell the bolt that time passed: a class bolt's `tick` is called, a function gets a `Tick`, untracked.

        What is emitted without naming anchors is unanchored, for a tick belongs to no message. A keyed function has no
        key in hand; a task's own state is.
        """
        worked = Worked()
        tick = Tick(time_s)
        frame = Frame(self._place.task_id, "", TICK_STREAM, [tick], [UNTRACKED], [1], 0)
        self._place.frame = frame
        state, keys = self._state_of_task()
        if self._bolt is not None and self._spec.takes_collector:
            assert self._collector_call is not None
            call, collector = self._method(self._bolt.tick), self._collector_call.collector
            self._collector_call.run(frame, lambda _: call(collector), state, keys, worked)
            self._collector_call.forget(tick)
        elif self._spec.style == "function" and Tick in self._spec.input_types:
            if self._state is not None and state is None:
                self._state.key = self._state.value = None
            if self._collector_call is not None:
                self._collector_call.run(frame, self._call, state, keys, worked)
                self._collector_call.forget(tick)
            elif state is not None and keys is not None:
                self._run_keyed(frame, keys, state, worked)
            else:
                self._run_stateless(frame, worked)
        return worked

    def _state_of_task(self) -> tuple[StateCell, list[Any]] | tuple[None, None]:
        """The state with its key, where the key is no tuple's but the task's."""
        if self._state is None or self._spec.state is None or self._spec.state.is_keyed:
            return None, None
        keys = [self._place.task_index]
        self._state.prepare(keys, self._place.epoch_time_s)
        return self._state, keys

    def unsettled(self) -> list[int]:
        """Roots of tuples that the bolt neither acked nor failed so far."""
        return self._collector_call.unsettled() if self._collector_call is not None else []

    def purge(self, roots: Collection[int]) -> None:
        """These roots are over: drop what is held for them only."""
        if self._collector_call is not None:
            self._collector_call.purge(roots)

    def _with_keys(self, frame: Frame, worked: Worked) -> tuple[Frame, list[Any]]:
        """The frame with the key of each tuple, without the tuples whose key cannot be made, which fail."""
        keys_of = self._keys[frame.component, frame.stream]
        try:
            return frame, keys_of(frame.values)
        except Exception:  # noqa: BLE001, S110 - whose key it is that cannot be made is found out below
            pass
        pieces: list[tuple[Root, list[Any]]] = []
        for root, values in frame.segments():
            keyed = []
            for value in values:
                try:
                    keyed.append((value, *keys_of([value])))
                except Exception as error:  # noqa: BLE001 - it becomes this tuple's failure
                    self._fail.blame(worked, root, value, error)
            pieces.append((root, keyed))
        kept = [piece for piece in pieces if not all_failed(piece[0], worked.failures)]
        both, roots, ends = join_segments(kept)
        values = [value for value, _ in both]
        frame = Frame(frame.task, frame.component, frame.stream, values, roots, ends, frame.id, None, frame.source)
        return frame, [key for _, key in both]

    def _run_stateless(self, frame: Frame, worked: Worked) -> None:
        """The hot loop of bolts without collector and state: call, gather, drop what a failing root emitted."""
        out: list[Any] = []
        out_roots: list[Root] = []
        out_ends: list[int] = []
        call, place, values = self._call, self._place, frame.values
        add: Callable[[Any], None] = out.extend if self._spec.returns == "many" else out.append
        failures = worked.failures
        start = index = mark = 0
        for root, end in zip(frame.roots, frame.ends, strict=True):
            if failures and all_failed(root, failures):
                start = end
                continue
            place.root = root
            try:
                if end - start == 1:  # a loop costs as much as a small bolt
                    result = call(values[(index := start)])
                    if result is not None:
                        add(result)
                else:
                    for index in range(start, end):
                        result = call(values[index])
                        if result is not None:
                            add(result)
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                # GeneratorExit, SystemExit and CancelledError are failures of the user's code here.
                if self._meets(error, frame, worked):
                    given = len(out)
                    if self._spec.returns == "many":  # what a generator gave before it raised stands among the others
                        index, given = start, mark
                    frame = self._leave(frame, (root, end), index, worked, (out, out_roots, out_ends), given)
                    break
                del out[mark:]
                self._fail.blame(worked, root, values[index], error)
            else:
                if len(out) > mark:
                    mark = len(out)
                    out_roots.append(root)
                    out_ends.append(mark)
            start = end
        place.root = None
        self._finish(frame, out, out_roots, out_ends, worked)

    def _run_keyed(self, frame: Frame, keys: list[Any], state: StateCell, worked: Worked) -> None:
        """The hot loop of bolts with keyed state: as above, with each tuple's value put in hand and taken back."""
        out: list[Any] = []
        out_roots: list[Root] = []
        out_ends: list[int] = []
        call, place, values = self._keyed_call, self._place, frame.values
        changed, load = state.changed, state.load
        add, given_by = _adding(out, several=self._spec.returns == "many")
        failures = worked.failures
        value: Any = None
        start = mark = 0
        for root, end in zip(frame.roots, frame.ends, strict=True):
            if failures and all_failed(root, failures):
                start = end
                continue
            place.root = root
            coming = iter(values[start:end])
            try:
                for key, value in zip(keys[start:end], coming):
                    state.key = key
                    try:
                        held = changed[key]
                    except KeyError:
                        held = _NOTHING
                    if held is _NOTHING:  # out here, so that an error of the user's default has no other before it
                        held = load(key)
                    state.value = held
                    result = call(value, state)
                    if result is not None:
                        add(result)
                    if state.value is not held:
                        changed[key] = state.value
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                if self._meets(error, frame, worked):
                    index = end - 1 - length_hint(coming)
                    frame = self._leave(frame, (root, end), index, worked, (out, out_roots, out_ends), given_by())
                    break
                del out[mark:]
                self._fail.blame(worked, root, value, error)
            else:
                if len(out) > mark:
                    mark = len(out)
                    out_roots.append(root)
                    out_ends.append(mark)
            start = end
        place.root = None
        self._finish(frame, out, out_roots, out_ends, worked)

    def _run_singles(self, frame: Frame, worked: Worked) -> None:
        """As `_run_stateless`, for frames with one tuple per segment: half the time of small messages is the loop."""
        out: list[Any] = []
        marks: list[int] = []  # how much was emitted up to each tuple, itself included
        call, place, mark = self._call, self._place, marks.append
        add: Callable[[Any], None] = out.extend if self._spec.returns == "many" else out.append
        coming: Iterator[Any] = zip(frame.roots, frame.values, strict=True)
        root: Root = UNTRACKED
        value, is_whole = None, True
        while True:
            try:
                for root, value in coming:
                    place.root = root
                    result = call(value)
                    if result is not None:
                        add(result)
                    mark(len(out))
                break
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                if self._ends_singles(error, frame, root, value, worked, out, marks):
                    return
                if is_whole:
                    coming, is_whole = _without_failed(coming, worked.failures, out, marks), False
        self._finish_singles(frame, out, marks, worked)

    def _run_keyed_singles(self, frame: Frame, keys: list[Any], state: StateCell, worked: Worked) -> None:
        """As `_run_singles`, for bolts with keyed state."""
        out: list[Any] = []
        marks: list[int] = []
        call, place, mark = self._keyed_call, self._place, marks.append
        changed, load = state.changed, state.load
        add: Callable[[Any], None] = out.extend if self._spec.returns == "many" else out.append
        coming: Iterator[Any] = zip(frame.roots, keys, frame.values, strict=True)
        root: Root = UNTRACKED
        value, is_whole = None, True
        while True:
            try:
                for root, key, value in coming:
                    place.root = root
                    state.key = key
                    try:
                        held = changed[key]
                    except KeyError:
                        held = _NOTHING
                    if held is _NOTHING:  # out here, so that an error of the user's default has no other before it
                        held = load(key)
                    state.value = held
                    result = call(value, state)
                    if result is not None:
                        add(result)
                    if state.value is not held:
                        changed[key] = state.value
                    mark(len(out))
                break
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                if self._ends_singles(error, frame, root, value, worked, out, marks):
                    return
                if is_whole:
                    coming, is_whole = _without_failed(coming, worked.failures, out, marks), False
        self._finish_singles(frame, out, marks, worked)

    def _ends_singles(
        self,
        error: BaseException,
        frame: Frame,
        root: Root,
        value: Any,
        worked: Worked,
        out: list[Any],
        marks: list[int],
    ) -> bool:
        """A call of a frame of singles raised: take back what it gave. Whether it met an outage, which ends the work.

        If not, its tuple has failed.
        """
        index, before = len(marks), marks[-1] if marks else 0
        del out[before:]
        if not self._meets(error, frame, worked):
            self._fail.blame(worked, root, value, error)
            marks.append(before)
            return False
        roots, ends = _laid_out(frame.roots, marks)
        frame = self._leave(frame, (root, index + 1), index, worked, (out, roots, ends), before)
        self._place.root = None
        self._finish(frame, out, roots, ends, worked)
        return True

    def _finish_singles(self, frame: Frame, out: list[Any], marks: list[int], worked: Worked) -> None:
        self._place.root = None
        self._finish(frame, out, *_laid_out(frame.roots, marks), worked)

    def _run_in_parts(self, frame: Frame, keys: list[Any] | None, worked: Worked, outlet: Outlet) -> Iterator[Worked]:
        """The loop of bolts that give many tuples a call, with or without state, where a part of them is enough."""
        parts = Chunks(outlet, self._stream_for, partial(self._sorted, worked), self._sorted_open)
        call, keyed_call, place, values = self._call, self._keyed_call, self._place, frame.values
        state = self._state if keys is not None else None
        out, extend, add_root, add_end = parts.values, parts.values.extend, parts.roots.append, parts.ends.append
        failures, room, is_poured = worked.failures, CHECK, False
        held: Any = None
        start = index = mark = before = 0
        for root, end in zip(frame.roots, frame.ends, strict=True):
            if failures and all_failed(root, failures):
                start = end
                continue
            place.root = root
            try:
                index = start
                while index < end:  # a range costs as much as a small bolt
                    before = len(out)
                    if state is None or keys is None:
                        result = call(values[index])
                    else:
                        held = put_in_hand(state, keys[index])
                        result = keyed_call(values[index], state)
                    if result is not None:
                        rest = iter(result)
                        extend(islice(rest, FIRST))
                        if type(rest) is not GeneratorType or rest.gi_frame is not None:  # or it is over
                            parts.take_rest(rest, root)
                            is_poured = parts.is_poured
                    if state is not None and state.value is not held:
                        state.changed[state.key] = state.value
                    index += 1
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                met = self._meets(error, frame, worked, may_wait=not is_poured or index == start)
                parts.drop(keeps=met)
                if met:
                    frame = self._leave(frame, (root, end), index, worked, (out, parts.roots, parts.ends), before)
                    break
                is_poured, mark = False, len(out)
                self._fail.blame(worked, root, values[index], error)
            else:
                if is_poured:
                    parts.keep()
                    is_poured, mark = False, 0
                if len(out) > mark:
                    mark = len(out)
                    add_root(root)
                    add_end(mark)
                    if mark >= room:
                        room = parts.measured()
                        if mark >= room:
                            yield Worked(outputs=parts.take())
                            mark = 0
            start = end
        place.root = None
        self._finish(frame, out, parts.roots, parts.ends, worked)

    def _stream_for(self, value: Any) -> str:
        stream = self._stream_of.get(type(value))
        if stream is None:
            raise wrong_type(value, self._expected())
        return stream

    def _expected(self) -> str:
        return " or ".join(sorted(cls.__name__ for cls in self._stream_of)) or "nothing: it has no outputs"

    def _sorted_open(self, out: list[Any], roots: list[Root], ends: list[int]) -> list[Output]:
        """What the call in hand emitted as one output per stream. Raises ProcessingError for what no stream carries."""
        classes = set(map(type, out))
        if classes - self._stream_of.keys():
            self._stream_for(next(value for value in out if type(value) not in self._stream_of))
        return self._by_stream(out, roots, ends, classes)

    def _finish(self, frame: Frame, out: list[Any], roots: list[Root], ends: list[int], worked: Worked) -> None:
        if out:
            if roots is not frame.roots and roots == frame.roots:
                roots = frame.roots  # one list per tree, as far as it goes, lets its edges be added up by list
            worked.outputs += self._sorted(worked, out, roots, ends)
        done = done_roots(frame, worked.failures)
        if done:
            worked.done.append((frame.id, done))

    def _sorted(self, worked: Worked, out: list[Any], roots: list[Root], ends: list[int]) -> list[Output]:
        """One output per stream, without what no stream carries, and without what failed roots emitted."""
        classes = set(map(type, out))
        unknown = classes - self._stream_of.keys()
        if unknown:
            out, roots, ends = self._refuse(out, roots, ends, unknown, worked)
            classes = set(map(type, out))
        if worked.failures:
            # A root that stands in several segments may have emitted before it failed.
            pieces = segments_of(out, roots, ends)
            out, roots, ends = join_segments([one for one in pieces if not all_failed(one[0], worked.failures)])
            classes = set(map(type, out))
        return self._by_stream(out, roots, ends, classes)

    def _refuse(
        self, out: list[Any], roots: list[Root], ends: list[int], unknown: set[type], worked: Worked
    ) -> tuple[list[Any], list[Root], list[int]]:
        """Fail the roots of values that no stream carries, and leave these values out."""
        expected = self._expected()
        pieces: list[tuple[Root, list[Any]]] = []
        for root, values in segments_of(out, roots, ends):
            bad = next((value for value in values if type(value) in unknown), _NOTHING)
            if bad is _NOTHING:
                pieces.append((root, values))
            else:
                self._fail.blame(worked, root, bad, wrong_type(bad, expected))
        return join_segments(pieces)

    def _by_stream(self, out: list[Any], roots: list[Root], ends: list[int], classes: set[type]) -> list[Output]:
        """One output per stream, in order of their names."""
        outputs = []
        for cls in sorted(classes, key=self._stream_of.__getitem__):
            layout = (out, roots, ends) if len(classes) == 1 else select(out, roots, ends, cls)
            output = Output(self._stream_of[cls], *layout)
            if len(classes) > 1 and self._place.numbered:
                output.made = [place for place, value in enumerate(out) if type(value) is cls]
            outputs.append(output)
        return outputs


_NOTHING = object()


def _laid_out(roots: list[Root], marks: list[int]) -> tuple[list[Root], list[int]]:
    """Roots and ends of what calls of one tuple each emitted, from how much it was after each call."""
    if marks and marks[0] and len({*marks}) == len(marks):
        return (roots if len(roots) == len(marks) else roots[: len(marks)]), marks
    emitted = [*map(gt, marks, chain((0,), marks))]
    return [*compress(roots, emitted)], [*compress(marks, emitted)]


def _without_failed(coming: Iterator[Any], failures: Container[int], out: list[Any], marks: list[int]) -> Iterator[Any]:
    """What is to be called yet, each with its root first, without the tuples of failed roots, which emit nothing."""
    for one in coming:
        if all_failed(one[0], failures):
            marks.append(len(out))
        else:
            yield one


def _adding(out: list[Any], *, several: bool) -> tuple[Callable[[Any], None], Callable[[], int]]:
    """How to add what a call gave, and how many are of calls that have ended: a generator may raise in the middle."""
    if not several:
        return out.append, lambda: len(out)
    given = 0

    def add(results: Any) -> None:
        nonlocal given
        out.extend(results)
        given = len(out)

    return add, lambda: given


def _waiting_call(call: Callable[[Any], Any], wait: Callable[[], None]) -> Callable[[Any], Any]:
    """The call, after a wait. A tick is not one of the calls that are counted."""

    def called(value: Any) -> Any:
        if type(value) is not Tick:
            wait()
        return call(value)

    return called


def _not_open(_: Any) -> None:
    """Stands for the call of a class bolt until `open`."""


def _parameter_names(target: Callable[..., Any]) -> tuple[str, ...]:
    code = getattr(target, "__code__", None)
    return code.co_varnames[: code.co_argcount] if code is not None else ()
