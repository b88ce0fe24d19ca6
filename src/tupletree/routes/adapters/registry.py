"""Which adapter a name of the document means: `find`, `adapter` and `names`.

Owns the table of built-in adapters, the decorator, and the errors of a wrong name. A module is imported when its
adapter is used. It refuses to open anything.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeVar

from tupletree.errors import ConfigError, RuntimeUnavailableError, nearest
from tupletree.routes.adapters.contract import Adapter, AdapterConfig
from tupletree.routes.adapters.functions import adapter_of

ENTRY_POINTS = "tupletree.adapters"
"""Group of entry points by which an installed package names adapters: `name = "package.module:Class"`."""

BUILT_IN: dict[str, tuple[str, str, str]] = {
    "delay": ("tupletree.routes.adapters.builtin.delay", "Delay", "routes"),
    "dedupe": ("tupletree.routes.adapters.builtin.dedupe", "Dedupe", "routes"),
    "drop": ("tupletree.routes.adapters.builtin.filter", "Drop", "routes"),
    "embed": ("tupletree.routes.adapters.builtin.embed", "Embed", "embed"),
    "filter": ("tupletree.routes.adapters.builtin.filter", "Filter", "routes"),
    "http_request": ("tupletree.routes.adapters.builtin.http", "HttpRequest", "routes"),
    "list_files": ("tupletree.routes.adapters.builtin.files", "ListFiles", "routes"),
    "log": ("tupletree.routes.adapters.builtin.log", "Log", "routes"),
    "parse": ("tupletree.routes.adapters.builtin.parse", "Parse", "routes"),
    "read_file": ("tupletree.routes.adapters.builtin.files", "ReadFile", "routes"),
    "segment_text": ("tupletree.routes.adapters.builtin.segment", "SegmentText", "routes"),
    "split": ("tupletree.routes.adapters.builtin.split", "SplitItems", "routes"),
    "switch": ("tupletree.routes.adapters.builtin.switch", "Switch", "routes"),
    "template": ("tupletree.routes.adapters.builtin.template", "Template", "routes"),
    "write_file": ("tupletree.routes.adapters.builtin.files", "WriteFile", "routes"),
    "write_sql": ("tupletree.routes.adapters.builtin.sql", "WriteSql", "routes"),
}
"""Name → module, class, and the extra of Tupletree that brings what the module imports."""

_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_REFERENCE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")

_registered: dict[str, type[Adapter[Any]]] = {}

T = TypeVar("T", bound=Callable[..., Any])


class UnknownAdapterError(ConfigError):
    """No adapter has this name, or what has it is none.

    Attributes:
        nearest: the name that was probably meant; empty if none is near.
    """

    def __init__(self, what: str, *, got: str, expected: str, next_step: str = "", nearest: str = "") -> None:
        super().__init__(
            what, got=got, expected=expected, next_step=f"did you mean {nearest}?" if nearest else next_step
        )
        self.nearest = nearest


def adapter(name: str) -> Callable[[T], T]:
    """Give an adapter class, or a function, a name that documents may use. The module must be imported for it to count.

    Args:
        name: lower case letters, digits, `_`, `.` and `-`, beginning with a letter.

    Raises:
        ConfigError: no such name is allowed, or another adapter has it.

    Example:
        >>> from tupletree.routes.adapters import adapter, find
        >>> @adapter("shout")
        ... def shout(payload: str) -> str:
        ...     return payload.upper()
        >>> find("shout").version
        '1'
    """
    if not _NAME.fullmatch(name):
        raise ConfigError("no name for an adapter", got=repr(name), expected="such as resize_image: a-z, 0-9, _ . -")

    def register(target: T) -> T:
        found = _usable(target, _path_of(target))
        known = _registered.get(name)
        if name in BUILT_IN or (known is not None and _path_of(known) != _path_of(found)):
            raise ConfigError(
                "two adapters have one name",
                where=_path_of(found),
                got=repr(name),
                next_step=f"rename it: {name} is {_path_of(known) if known else 'built in'}",
            )
        _registered[name] = found
        return target

    return register


def names() -> Sequence[str]:
    """Every name that `find` knows: built in, registered, and of installed packages; sorted."""
    return sorted({*BUILT_IN, *_registered, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def find(type_name: str) -> type[Adapter[Any]]:
    """The adapter class of a `type:` in a document.

    A function becomes a class whose settings are the function's keyword parameters (see `functions`).

    Args:
        type_name: a name of `names()`, `module:Class` or `module:function`.

    Raises:
        UnknownAdapterError: nothing is there, or no adapter; `nearest` is what was probably meant.
        ConfigError: importing its module failed, or the class cannot be used.
        RuntimeUnavailableError: a built-in adapter needs packages that are not installed.
    """
    if ":" in type_name:
        return _referred(type_name)
    if (found := _registered.get(type_name)) is not None:
        return found
    if (row := BUILT_IN.get(type_name)) is not None:
        return _built_in(type_name, *row)
    points = sorted(entry_points(group=ENTRY_POINTS, name=type_name), key=lambda point: point.value)
    if points:
        return _referred(points[0].value)
    known = names()
    raise UnknownAdapterError(
        "no adapter has this name",
        got=repr(type_name),
        expected=f"one of {', '.join(known)}, or module:Class, or module:function",
        nearest=nearest(type_name, known),
    )


def reference(cls: type[Adapter[Any]]) -> str:
    """`module:Class` (or `module:function`) of an adapter class: `find` gives it in another process, too.

    Raises:
        ConfigError: it was made within a function or in `__main__`, where no other process finds it.
    """
    path = _path_of(cls)
    if "<" in path or path.startswith("__main__:"):
        raise ConfigError(
            "another process cannot find this adapter",
            got=path,
            expected="a class or function at the top level of a module that can be imported",
        )
    return path


def _path_of(target: Any) -> str:
    return getattr(target, "reference", "") or f"{target.__module__}:{target.__qualname__}"


def _built_in(type_name: str, module: str, name: str, extra: str) -> type[Adapter[Any]]:
    try:
        found: type[Adapter[Any]] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"the packages of the adapter {type_name} are not installed",
            got=str(error),
            next_step=f"pip install 'tupletree[{extra or 'routes'}]'",
        ) from error
    return found


def _referred(type_name: str) -> type[Adapter[Any]]:
    if not _REFERENCE.fullmatch(type_name):
        raise UnknownAdapterError(
            "this is no reference to an adapter", got=repr(type_name), expected="module:Class or module:function"
        )
    module_name, _, path = type_name.partition(":")
    target: Any = _imported(module_name)
    walked = module_name
    for part in path.split("."):
        if not hasattr(target, part):
            raise UnknownAdapterError(
                f"{walked} has no {part}",
                got=type_name,
                expected="the name of an adapter class or a function",
                nearest=nearest(part, _callables(target)),
            )
        target, walked = getattr(target, part), f"{walked}.{part}"
    return _usable(target, type_name, _callables(importlib.import_module(module_name)))


def _usable(target: Any, path: str, others: Sequence[str] = ()) -> type[Adapter[Any]]:
    """The adapter class that a class or function makes, checked."""
    if isinstance(target, type) and issubclass(target, Adapter):
        _check(target, path)
        return target
    if isinstance(target, type) or not callable(target):
        name = path.partition(":")[2]
        raise UnknownAdapterError(
            "this is neither an adapter class nor a function",
            got=f"{path}, {_kind(target)}",
            expected="a class derived from Adapter, StatefulAdapter or BatchAdapter, or a function",
            nearest=nearest(name, [one for one in others if one != name]),
        )
    return adapter_of(target, path)


def _imported(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UnknownAdapterError(
                f"there is no module {error.name}",
                got=module_name,
                expected="a module that can be imported where the pipeline runs",
                next_step="run in the folder that holds it, or install it",
            ) from error
        raise _broken(module_name, error) from error
    except Exception as error:  # a module of the user: it may raise anything
        raise _broken(module_name, error) from error


def _broken(module_name: str, error: Exception) -> ConfigError:
    return ConfigError(
        "importing the module of an adapter failed",
        where=module_name,
        got=f"{type(error).__name__}: {error}",
        next_step=f"try: python -c 'import {module_name}'",
    )


def _check(found: type[Adapter[Any]], type_name: str) -> None:
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError("this adapter class is not complete", got=type_name, expected=f"it defines {missing}")
    config: Any = found.Config
    if not (isinstance(config, type) and issubclass(config, AdapterConfig)):
        raise ConfigError(
            "the settings of this adapter class cannot be checked",
            where=type_name,
            got=f"Config is {_kind(config)}",
            expected="class Config(AdapterConfig)",
        )


def _callables(place: Any) -> list[str]:
    found = {name: getattr(place, name, None) for name in vars(place) if not name.startswith("_")}
    return [
        name
        for name, value in found.items()
        if inspect.isfunction(value) or (isinstance(value, type) and issubclass(value, Adapter))
    ]


def _kind(target: Any) -> str:
    return (
        f"the class {target.__qualname__}" if isinstance(target, type) else f"a value of type {type(target).__name__}"
    )
