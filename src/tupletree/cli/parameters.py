"""Bind `--set name=value` texts to the parameters of a topology's factory, typed by its annotations.

Owns the reading of text as a type and the text of each error. It calls nothing: it returns keyword arguments.
"""

from __future__ import annotations

import inspect
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tupletree.errors import ConfigError, Finding, did_you_mean
from tupletree.topology import hints
from tupletree.topology.secret import HIDDEN, Secret

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([^\W\d]\w*))")
MAX_FILE_BYTES = 1024 * 1024
_LISTS = (list, tuple, set, frozenset)


def bind_parameters(
    factory: Callable[..., Any], settings: Sequence[str], *, where: str, environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    r"""Return the keyword arguments that the settings mean.

    Text is read as the annotated type: str, int, float, bool, Path, a Literal, any of them or None, and lists, tuples
    and sets of them. A list takes its values from commas, from repeated settings, or both (`\,` is a comma within a
    value); an empty text is an empty list. Every other parameter may be set once. `name=@FILE` is what a file holds,
    without its last line break, and `name=$VARIABLE` what the environment holds; `@@` and `$$` stand for a text that
    begins with one of the two. The text of a `Secret` is in no error. Without an annotation the type of the default
    counts, else it is str.

    Args:
        factory: the function whose parameters are bound.
        settings: `name=value` texts in the order given.
        where: the factory's place, for errors.
        environment: where variables are looked up.

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
            findings.append(_unknown(name, list(parameters), where))
        else:
            try:
                given.setdefault(name, []).append(_looked_up(text, environment))
            except ValueError as fault:
                findings.append(
                    Finding(
                        str(fault),
                        f"--set {name}",
                        next_step=f"--set {name}={text[:1]}… means that; "
                        f"a text that begins with {text[:1]} is written {text[:1] * 2}",
                    )
                )
    bound = {}
    for name, parameter in parameters.items():
        if name in given:
            annotation = annotations.get(name, _type_of_default(parameter))
            try:
                bound[name] = _bind(given[name], annotation)
            except ValueError as fault:
                texts = [HIDDEN] if _is_secret(annotation) else given[name]
                shown = " ".join(f"--set {name}={text}" for text in texts)
                findings.append(Finding("does not fit the parameter", shown, ", ".join(map(repr, texts)), str(fault)))
        elif parameter.default is parameter.empty:
            findings.append(
                Finding("a parameter without default is not set", where, name, next_step=f"--set {name}=VALUE")
            )
    if findings:
        raise ConfigError("the topology's parameters are invalid", findings=findings)
    return bound


def url_from(text: str) -> str:
    """A URL as it was given, or that of `@file` or `$VARIABLE`: its password is then on no command line.

    Raises:
        ConfigError: there is no such file or variable.
    """
    try:
        return _looked_up(text, os.environ)
    except ValueError as fault:
        raise ConfigError("the URL cannot be looked up", got=text, expected=str(fault)) from None


def _looked_up(text: str, environment: Mapping[str, str]) -> str:
    """The text that a file or variable holds. Raises ValueError if there is none."""
    if text.startswith(("@@", "$$")):
        return text[1:]
    if text.startswith("@"):
        try:
            with Path(text[1:]).expanduser().open("rb") as file:  # also a pipe: `@/dev/stdin`, `@<(command)`
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise ValueError(f"the file {text[1:]!r} has more than {MAX_FILE_BYTES} bytes")
            return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise ValueError(f"the file {text[1:]!r} cannot be read: {reason}") from None
    if variable := _VARIABLE.fullmatch(text):
        name = variable[1] or variable[2]
        if name not in environment:
            raise ValueError(f"the environment has no variable {name}")
        return environment[name]
    return text


def _is_secret(annotation: Any) -> bool:
    return any(typing.get_origin(one) is Secret or one is Secret for one in hints.members(annotation))


def _bind(texts: list[str], annotation: Any) -> Any:
    """Raises ValueError that says what was expected, and nothing of the text."""
    if not _is_secret(annotation):
        return _read(texts, annotation)
    if hints.NONE_TYPE in hints.members(annotation) and [text.strip().lower() for text in texts] == ["none"]:
        return None
    for one in hints.members(annotation):
        if typing.get_origin(one) is Secret:
            return Secret(_read(texts, typing.get_args(one)[0]))
    return Secret(_read(texts, str))


def _unknown(name: str, names: list[str], where: str) -> Finding:
    expected = f"one of {', '.join(names)}" if names else f"no --set: {where} takes no parameters"
    return Finding("unknown parameter", f"--set {name}=…", name, expected, did_you_mean(name, names))


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
            items = [item for text in texts if text.strip() for item in _parts(text)]
            return (origin if origin in _LISTS else list)(_read([item], element) for item in items)
    if len(texts) > 1:
        raise ValueError(f"{hints.text_of(annotation)}, set once")
    [text] = texts
    # Any text is a str, so that comes last: "3" for `str | int` is 3.
    for alternative in sorted(alternatives, key=lambda kind: kind is str):
        try:
            return _read_one(text, alternative)
        except ValueError:
            continue
    raise ValueError(_expected(annotation))


def _parts(text: str) -> list[str]:
    r"""The values between commas; `\,` is a comma that belongs to a value."""
    return [part.strip().replace("\\,", ",") for part in re.split(r"(?<!\\),", text)]


def _read_one(text: str, kind: Any) -> Any:
    """Raises ValueError for a text that is not of this type."""
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
