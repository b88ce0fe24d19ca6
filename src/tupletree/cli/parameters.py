"""Bind `--set name=value` texts to the parameters of a topology's factory, typed by its annotations.

Owns the reading of text as a type and the words of each fault. It calls nothing: it returns keyword arguments.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from tupletree.errors import ConfigError, Finding
from tupletree.topology import hints

__all__ = ["bind_parameters"]

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
_LISTS = (list, tuple, set, frozenset)


def bind_parameters(factory: Callable[..., Any], settings: Sequence[str], *, where: str) -> dict[str, Any]:
    """Return the keyword arguments that the settings mean.

    Text is read as the annotated type: str, int, float, bool, Path, a Literal, any of them or None, and lists, tuples
    and sets of them. A list takes its values from commas, from repeated settings, or both; an empty text is an empty
    list. Every other parameter may be set once. Without an annotation the type of the default counts, else it is str.

    Args:
        factory: the function whose parameters are bound.
        settings: `name=value` texts in the order given.
        where: the factory's place, for errors.

    Raises:
        ConfigError: with every fault: unknown names, texts that do not read as the type, parameters left unset.
    """
    parameters = {
        parameter.name: parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    }
    try:
        annotations = hints.resolve(factory)
    except hints.RESOLVE_ERRORS as error:
        raise ConfigError("the parameters' annotations cannot be read", where=where, got=str(error)) from error
    findings: list[Finding] = []
    given: dict[str, list[str]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip()
        if not equals:
            findings.append(Finding("not a setting", f"--set {setting}", setting, "name=value"))
        elif name not in parameters:
            findings.append(_unknown(name, setting, list(parameters), where))
        else:
            given.setdefault(name, []).append(text)
    bound = {}
    for name, parameter in parameters.items():
        if name in given:
            annotation = annotations.get(name, _type_of_default(parameter))
            try:
                bound[name] = _read(given[name], annotation)
            except ValueError as fault:
                shown = " ".join(f"--set {name}={text}" for text in given[name])
                findings.append(
                    Finding("does not fit the parameter", shown, ", ".join(map(repr, given[name])), str(fault))
                )
        elif parameter.default is parameter.empty:
            findings.append(
                Finding("a parameter without default is not set", where, name, next_step=f"--set {name}=VALUE")
            )
    if findings:
        raise ConfigError("the topology's parameters are not right", findings=findings)
    return bound


def _unknown(name: str, setting: str, names: list[str], where: str) -> Finding:
    expected = f"one of {', '.join(names)}" if names else f"no --set: {where} takes no parameters"
    return Finding("unknown parameter", f"--set {setting}", name, expected, hints.did_you_mean(name, names))


def _type_of_default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    if isinstance(default, Path):
        return Path
    return type(default) if type(default) in {bool, int, float, str} else str


def _read(texts: list[str], annotation: Any) -> Any:
    """Raises ValueError with what was expected."""
    alternatives = hints.members(annotation)
    if hints.NONE_TYPE in alternatives and [text.strip().lower() for text in texts] == ["none"]:
        return None
    for alternative in alternatives:
        origin = typing.get_origin(alternative) or alternative
        if origin in _LISTS or origin is Sequence:
            element = next((inner for inner in typing.get_args(alternative) if inner is not ...), str)
            items = [item.strip() for text in texts for item in text.split(",") if text.strip()]
            return (origin if origin in _LISTS else list)(_read([item], element) for item in items)
    if len(texts) > 1:
        raise ValueError(f"{hints.text_of(annotation)}, set once")
    [text] = texts
    # Text fits everything, so it comes last: "3" for `str | int` is 3.
    for alternative in sorted(alternatives, key=lambda kind: kind is str):
        try:
            return _read_one(text, alternative)
        except ValueError:
            continue
    raise ValueError(_expected(annotation))


def _read_one(text: str, kind: Any) -> Any:
    """Raises ValueError for a text that is no such thing."""
    if kind is str or kind is Any:
        return text
    if kind is Path:
        if not text:
            raise ValueError("an empty path")
        return Path(text).expanduser()
    if kind is bool:
        word = text.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError("neither true nor false")
        return word in _TRUE
    if kind is int or kind is float:
        return kind(text)
    if typing.get_origin(kind) is Literal:
        for choice in typing.get_args(kind):
            if str(choice) == text:
                return choice
    raise ValueError("no type that text can become")


def _expected(annotation: Any) -> str:
    if annotation is bool:
        return "true or false"
    if typing.get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(annotation)))}"
    return hints.text_of(annotation)
