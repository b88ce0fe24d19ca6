"""Type hints as plain facts: resolved annotations, union members, generic arguments, stable texts.

Owns every look at `typing`'s inner shapes, so that no other module has to know them. It refuses to judge: what an
annotation means for a topology is the reader's business.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ForwardRef, Literal, NewType, TypeVar, Union, get_args, get_origin

NONE_TYPE = type(None)

RESOLVE_ERRORS = (NameError, TypeError, SyntaxError, AttributeError)
"""What `resolve` raises when an annotation cannot be resolved, or is no type."""


def plain(annotation: Any) -> Any:
    """Take off what says nothing about the value's shape: Annotated, NewType, `type` aliases; None → NoneType."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # Python 3.12's `type X = ...`
            annotation = annotation.__value__
        else:
            return NONE_TYPE if annotation is None else annotation


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, flattened and plain; one member for anything else."""
    annotation = plain(annotation)
    if get_origin(annotation) in {Union, types.UnionType}:
        return tuple(inner for member in get_args(annotation) for inner in members(member))
    return (annotation,)


def resolve(owner: Callable[..., Any] | type, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The annotations of a function or class as objects, with `Annotated` kept.

    Args:
        owner: function or class; its module's names resolve annotations written as text.
        names: more names, for classes that live inside a function; asked only if the module's do not do.

    Raises:
        RESOLVE_ERRORS: an annotation names something that cannot be found, or that is no type.
    """
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except NameError:
        if not names:
            raise
        return typing.get_type_hints(owner, localns=dict(names), include_extras=True)


def generic_argument(cls: type, base: type) -> Any:
    """What `cls` puts in for the single parameter of its generic ancestor `base`; None where that stays open.

    >>> class Numbers(list[int]): ...
    >>> generic_argument(Numbers, list)
    <class 'int'>
    """
    argument = _argument(cls, base)
    return None if isinstance(argument, TypeVar | ForwardRef) else argument


def _argument(cls: type, base: type) -> Any:
    """As `generic_argument`, but an open argument comes back as the type variable that `cls` calls it by."""
    for parent in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin, arguments = get_origin(parent) or parent, get_args(parent)
        if origin is base:
            return arguments[0] if arguments else None
        if isinstance(origin, type) and issubclass(origin, base):
            inner = _argument(origin, base)
            if not isinstance(inner, TypeVar):
                return inner
            position = getattr(origin, "__parameters__", ()).index(inner)
            return arguments[position] if position < len(arguments) else None
    return None


def declared_class(component: object, base: type) -> Any:
    """What a spout or sink says its messages are; None if it says nothing.

    Its attribute `message_type` comes first, then the alias it was made by (`Items[Line](...)`), then its class's.
    """
    own = getattr(component, "message_type", None)
    if own is not None:
        return own
    alias = getattr(component, "__orig_class__", None)
    if alias is not None:
        made_by = generic_argument(type("Alias", (), {"__orig_bases__": (alias,)}), base)
        if made_by is not None:
            return made_by
    return generic_argument(type(component), base)


def declared_classes(component: object, base: type) -> tuple[type, ...]:
    """The classes that a spout or sink says its messages are of; none if it says nothing, or Any."""
    declared = members(declared_class(component, base))
    return tuple(cls for cls in declared if isinstance(cls, type) and cls not in {Any, NONE_TYPE})


def text_of(annotation: Any, name_of: Callable[[type], str] | None = None) -> str:
    """A text for people and checkpoints: the same in every process and Python version.

    Args:
        annotation: what to write.
        name_of: how classes are named; by default with their modules, but for those of Python itself.

    >>> text_of(dict[str, list[int | None]])
    'dict[str, list[int | None]]'
    """
    annotation = plain(annotation)
    if annotation is NONE_TYPE:
        return "None"
    if annotation is Any:
        return "Any"
    if annotation is Ellipsis:
        return "..."
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in {Union, types.UnionType}:
        return " | ".join(text_of(member, name_of) for member in members(annotation))
    if origin is not None and arguments:
        inner = ", ".join(text_of(argument, name_of) for argument in arguments if not isinstance(argument, list))
        return f"{text_of(origin, name_of)}[{inner}]"
    if isinstance(annotation, type):
        return _full_name(annotation) if name_of is None else name_of(annotation)
    return str(annotation)


def _full_name(cls: type) -> str:
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


def classes_in(annotation: Any) -> tuple[type, ...]:
    """Every class that occurs in an annotation, in order."""
    found: list[type] = []
    for member in members(annotation):
        if get_origin(member) is not None:
            found += [cls for argument in get_args(member) for cls in classes_in(argument)]
        elif isinstance(member, type):
            found.append(member)
    return tuple(found)


def _caller() -> types.FrameType | None:
    """The nearest frame outside of the topology package: the user's call."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to a caller's frame
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tupletree.topology."):
        frame = frame.f_back
    return frame


def caller_names() -> dict[str, Any]:
    """The local names of the user's code that called into the topology package."""
    frame = _caller()
    return dict(frame.f_locals) if frame is not None else {}


def caller_place() -> str:
    """`file:line` of the user's code that called into the topology package."""
    frame = _caller()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
