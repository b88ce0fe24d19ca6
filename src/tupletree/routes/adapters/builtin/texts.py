"""Templates in settings: text with `{{ payload.name }}`, in Jinja's sandbox.

Owns the environment and what a template sees: `payload`, `headers`, `message` (`id`, `execution`), `settings`,
`attempt`. A name that is not there is an error, not empty text. What a payload says is never run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import AfterValidator

from tupletree.errors import PermanentError
from tupletree.routes.adapters.contract import PipelineContext

MAX_REPEATED = 1_000_000
"""Characters or items that `*` may make."""


class _Environment(ImmutableSandboxedEnvironment):
    """No attributes that begin with `_`, no changes of payloads, no endless arithmetic."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would take all of the memory."""
        for text, times in ((left, right), (right, left)):
            repeats = isinstance(text, str | bytes | list | tuple) and isinstance(times, int)
            if repeats and len(text) * times > MAX_REPEATED:
                raise SecurityError(f"{operator} would make more than {MAX_REPEATED:,} items")
        if operator == "**" and not (abs(left) < 1e6 and abs(right) < 100):
            raise SecurityError("the numbers of ** are too large")
        return super().call_binop(context, operator, left, right)


def _environment() -> _Environment:
    return _Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, cache_size=0)


class Text:
    """A template, compiled.

    Args:
        template: its source.
        where: the setting that it is from, for errors.
        escape: applied to the value of every expression, as for a part of a URL; None: nothing is.
    """

    def __init__(self, template: str, where: str, escape: Callable[[Any], str] | None = None) -> None:
        environment = _environment()
        if escape is not None:
            environment.finalize = escape
        self._where = where
        self._render = environment.from_string(template).render

    def render(self, context: PipelineContext) -> str:
        """The text for one message.

        Raises:
            PermanentError: a name is not there, or the template asks for what it must not do.
        """
        try:
            return self._render(variables(context))
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise PermanentError(
                "a template cannot be filled in",
                where=self._where,
                got=f"{type(error).__name__}: {error}",
                next_step="is the payload as the template expects it? {{ payload.name | default('') }} allows for none",
            ) from error


def variables(context: PipelineContext) -> Mapping[str, Any]:
    """What templates see."""
    message = context.message
    return {
        "payload": message.payload,
        "headers": message.headers,
        "message": {"id": message.id, "execution": message.execution},
        "settings": context.settings,
        "attempt": context.attempt,
    }


def _checked(template: str) -> str:
    try:
        _environment().from_string(template)
    except TemplateSyntaxError as error:
        raise ValueError(f"no template: line {error.lineno}: {error.message}") from None
    return template


TemplateText = Annotated[str, AfterValidator(_checked)]
"""A template in an adapter's settings; its syntax is checked with them."""
