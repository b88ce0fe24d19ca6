"""`template`: text, or a value, made of a message."""

from __future__ import annotations

import json
from typing import Any, Literal

from tupletree.errors import PermanentError
from tupletree.routes.adapters.builtin.texts import TemplateText, Text
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterContext, AdapterResult, PipelineContext
from tupletree.routes.adapters.paths import Path, TargetText


class TemplateConfig(AdapterConfig):
    """What is made.

    Attributes:
        template: Jinja's language, in its sandbox, over `payload`, `headers`, `message`, `settings`, `attempt`. A name
            that is not there fails the message for good.
        into: where the result is put.
        format: `text`: what the template gives; `json`: the value that this text is in JSON.
    """

    template: TemplateText
    into: TargetText = "payload"
    format: Literal["text", "json"] = "text"


class Template(Adapter[TemplateConfig]):
    """Fills in a template and puts the text into the message."""

    Config = TemplateConfig

    def open(self, context: AdapterContext) -> None:  # noqa: ARG002 - the contract's
        self._text = Text(self.config.template, "template: template")
        self._into = Path(self.config.into)

    async def process(self, context: PipelineContext) -> AdapterResult:
        value: Any = self._text.render(context)
        if self.config.format == "json":
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise PermanentError(
                    "what the template gives is no JSON",
                    got=f"{value[:200]!r} ({error})",
                    next_step="write values with the filter tojson: {{ payload.name | tojson }}",
                ) from error
        return AdapterResult(self._into.put(context.message, value))
