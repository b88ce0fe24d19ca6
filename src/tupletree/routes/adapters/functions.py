"""Functions as adapters: `type: module:function`.

Owns the class that is made of a function and the settings that its signature gives. The function's first parameter is
the payload (or, if its hint is `PipelineContext`, the call's context); its keyword parameters are the adapter's
settings, with their types and defaults. What it returns is the new payload; None filters the message; an
`AdapterResult` is taken as it is; what a generator yields is published, each payload as a message of its own.
"""

from __future__ import annotations

import importlib
import inspect
import typing
import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar

from pydantic import ConfigDict, create_model

from tupletree.errors import ConfigError
from tupletree.routes.adapters.contract import (
    Adapter,
    AdapterConfig,
    AdapterContext,
    AdapterResult,
    Emitted,
    PipelineContext,
)

_CONFIG = "/Config"

_made: dict[str, type[FunctionAdapter]] = {}
"""Reference → class, so that a function has one class, and one class of settings."""


class FunctionConfig(AdapterConfig):
    """Settings of a function: its keyword parameters."""


class OpenFunctionConfig(FunctionConfig):
    """Settings of a function that takes any keyword argument."""

    model_config = ConfigDict(extra="allow")


class FunctionAdapter(Adapter[FunctionConfig]):
    """What adapters of functions have in common; `adapter_of` makes a subclass for each function."""

    reference: ClassVar[str] = ""
    function: ClassVar[Callable[..., Any]]
    takes_context: ClassVar[bool] = False

    def open(self, context: AdapterContext) -> None:  # noqa: ARG002 - the contract's
        """Read the settings, once."""
        self.settings = dict(self.config)

    def call(self, context: PipelineContext) -> Any:
        """What the function returns: a value, an awaitable or a generator."""
        given = context if self.takes_context else context.message.payload
        return type(self).function(given, **self.settings)


class PlainFunctionAdapter(FunctionAdapter):
    """Calls a function for each message."""

    def process(self, context: PipelineContext) -> AdapterResult | None:
        value = self.call(context)
        if inspect.isgenerator(value):
            return _pieces(list(value))
        return _result(context, value)


class AsyncFunctionAdapter(FunctionAdapter):
    """Awaits a coroutine function, or reads an async generator, for each message."""

    async def process(self, context: PipelineContext) -> AdapterResult | None:
        value = self.call(context)
        if inspect.isasyncgen(value):
            return _pieces([piece async for piece in value])
        return _result(context, await value)


def _result(context: PipelineContext, value: Any) -> AdapterResult | None:
    if value is None or isinstance(value, AdapterResult):
        return value
    return AdapterResult(message=context.message.with_payload(value))


def _pieces(pieces: list[Any]) -> AdapterResult | None:
    emitted = [piece if isinstance(piece, Emitted) else Emitted(piece) for piece in pieces]
    return AdapterResult(emitted=emitted) if emitted else None


def adapter_of(target: Callable[..., Any], reference: str) -> type[Adapter[Any]]:
    """The adapter class of a function, one for each reference.

    Args:
        target: the function.
        reference: `module:name` of the function.

    Raises:
        ConfigError: the function cannot be called with a payload, or its parameters cannot be settings.
    """
    known = _made.get(reference)
    if known is not None and known.function is target:
        return known
    hint, fields, is_open = _parameters(target, reference)
    waits = inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)
    name = getattr(target, "__qualname__", reference)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a parameter may be called `json`, as a method of the model is
            config: Any = create_model(
                f"{name}.Config",
                __module__=__name__,
                __base__=OpenFunctionConfig if is_open else FunctionConfig,
                **fields,
            )
    except Exception as error:
        raise _unusable(reference, f"{type(error).__name__}: {error}") from error
    config.__qualname__ = _attribute_of(reference) + _CONFIG
    parts = {
        "__doc__": inspect.getdoc(target) or f"Calls {reference}.",
        "__module__": __name__,
        "__qualname__": _attribute_of(reference),
        "Config": config,
        "function": staticmethod(target),
        "parallel": bool(getattr(target, "parallel", False)),
        "reference": reference,
        "takes_context": hint is PipelineContext,
        "version": str(getattr(target, "version", "1")),
    }
    made = type(name, (AsyncFunctionAdapter if waits else PlainFunctionAdapter,), parts)
    _made[reference] = made
    return made


def __getattr__(name: str) -> Any:
    """The class of a function, or of its settings, in a process that has been sent one: they pickle by these names."""
    if ":" not in name:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    reference = name.removesuffix(_CONFIG).replace("/", ".")
    module, _, path = reference.partition(":")
    made = adapter_of(attrgetter(path)(importlib.import_module(module)), reference)
    return made.Config if name.endswith(_CONFIG) else made


def _attribute_of(reference: str) -> str:
    return reference.replace(".", "/")  # pickle would look up what is before a dot first


def _parameters(target: Callable[..., Any], reference: str) -> tuple[Any, dict[str, Any], bool]:
    """The hint of the first parameter, the others as fields of a model, and whether any other name may be given."""
    try:
        signature = inspect.signature(target)
        hints = typing.get_type_hints(target, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise _unusable(reference, f"{type(error).__name__}: {error}") from error
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in {kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD}:
        raise _unusable(reference, f"{reference.partition(':')[2]}{signature}")
    fields: dict[str, Any] = {}
    for one in parameters[1:]:
        default = ... if one.default is kinds.empty else one.default
        if one.kind in {kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY}:
            fields[one.name] = (hints.get(one.name, Any), default)
        elif one.kind is kinds.POSITIONAL_ONLY and default is ...:
            raise _unusable(reference, f"{reference.partition(':')[2]}{signature}")
    is_open = any(one.kind is kinds.VAR_KEYWORD for one in parameters)
    return hints.get(parameters[0].name, Any), fields, is_open


def _unusable(reference: str, got: str) -> ConfigError:
    return ConfigError(
        "this function cannot be an adapter",
        where=reference,
        got=got,
        expected="def step(payload, *, keyword parameters that are its settings)",
    )
