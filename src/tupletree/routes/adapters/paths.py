"""Places in a message: `payload.a.b[0]`, `payload["a.b"]`, `headers.x`, `message.id`.

Owns how they are read and how values are put there. It refuses to change a payload: a changed one is a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from tupletree.errors import PermanentError
from tupletree.routes.adapters.contract import RouteMessage

_MISSING = object()

_ROOTS = ("payload", "headers", "message")
_OF_MESSAGE: dict[str, Callable[[RouteMessage], Any]] = {
    "id": lambda message: message.id,
    "execution": lambda message: message.execution,
    "executions": lambda message: list(message.executions),
    "parents": lambda message: list(message.parents),
}
_STEP = re.compile(r"""\.(?P<key>[^.\[\]"'\s]+)|\[(?P<index>-?\d{1,9})\]|\[(?P<quote>["'])(?P<text>.*?)(?P=quote)\]""")


class Path:
    """A place in a message: `payload.a.b[0]`, `payload["a.b"]`, `headers.x`, `message.id`.

    Raises:
        ValueError: it is none; says why.
    """

    __slots__ = ("root", "steps", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        root = re.match(r"\w*", text)
        self.root = root[0] if root else ""
        if self.root not in _ROOTS:
            raise ValueError(f"{text!r} is no path; expected payload.kind, headers.source, message.id or the like")
        steps: list[str | int] = []
        place = len(self.root)
        while place < len(text):
            step = _STEP.match(text, place)
            if step is None:
                raise ValueError(f"{text!r} cannot be read from {text[place:]!r} on; expected .name, [0] or ['a name']")
            steps.append(int(step["index"]) if step["index"] else step["key"] or step["text"] or "")
            place = step.end()
        if self.root == "message" and (len(steps) != 1 or steps[0] not in _OF_MESSAGE):
            raise ValueError(f"{text!r} is nothing of a message; expected message.{', message.'.join(_OF_MESSAGE)}")
        if self.root == "headers" and len(steps) > 1:
            raise ValueError(f'{text!r} looks into a header, which is text; a name with dots is headers["a.b"]')
        self.steps = tuple(steps)

    def __reduce__(self) -> Any:
        return Path, (self.text,)

    def get(self, message: RouteMessage, default: Any = None) -> Any:
        """What is at this place, or `default`."""
        if self.root == "message":
            return _OF_MESSAGE[str(self.steps[0])](message)
        value: Any = message.payload if self.root == "payload" else message.headers
        for step in self.steps:
            if type(value) is dict:  # the usual case, and quicker than what follows
                value = value.get(step, _MISSING)
                if value is _MISSING:
                    return default
            elif type(step) is int:
                if not (isinstance(value, list | tuple) and -len(value) <= step < len(value)):
                    return default
                value = value[step]
            elif isinstance(value, Mapping) and step in value:
                value = value[step]
            else:
                return default
        return value

    def put(self, message: RouteMessage, value: Any) -> RouteMessage:
        """The message with this value at this place. Objects on the way are made where they are missing.

        Raises:
            PermanentError: something else is on the way.
        """
        if self.root == "headers":
            return message.with_headers(**{str(self.steps[0]): value if isinstance(value, str) else str(value)})
        return message.with_payload(self._put(message.payload, 0, value))

    def _put(self, found: Any, place: int, value: Any) -> Any:
        if place == len(self.steps):
            return value
        step = self.steps[place]
        if type(step) is int:
            if not (isinstance(found, list | tuple) and -len(found) <= step < len(found)):
                raise self._blocked(place, found)
            items = list(found)
            items[step] = self._put(items[step], place + 1, value)
            return items
        if not (found is None or isinstance(found, Mapping)):
            raise self._blocked(place, found)
        return {**(found or {}), step: self._put((found or {}).get(step), place + 1, value)}

    def _blocked(self, place: int, found: Any) -> PermanentError:
        step = self.steps[place]
        return PermanentError(
            "a result cannot be put where it belongs",
            where=self.text,
            got=f"{type(found).__name__} before {step!r}",
            expected="a list that is long enough" if type(step) is int else "an object, or nothing",
        )


def value_at(path: Path, message: RouteMessage, kinds: Any = object, expected: str = "") -> Any:
    """What is at a place.

    Raises:
        PermanentError: nothing is, or it is of another type.
    """
    found = path.get(message, _MISSING)
    if found is _MISSING:
        raise PermanentError(
            "a message has not what an adapter needs", where=path.text, got="nothing", expected=expected
        )
    if not isinstance(found, kinds):
        raise PermanentError(
            "a message has not what an adapter needs", where=path.text, got=type(found).__name__, expected=expected
        )
    return found


def _checked(text: str) -> str:
    Path(text)
    return text


def _checked_target(text: str) -> str:
    path = Path(text)
    if path.root == "message" or (path.root == "headers" and not path.steps):
        raise ValueError(f"nothing can be put at {text!r}; expected payload, payload.name or headers.name")
    return text


PathText = Annotated[str, AfterValidator(_checked)]
"""A path to read from, in an adapter's settings."""

TargetText = Annotated[str, AfterValidator(_checked_target)]
"""A path to put something at."""
