"""`log`: a line in the log for each message."""

from __future__ import annotations

import logging
from typing import Literal

from tupletree.routes.adapters.builtin.texts import TemplateText, Text
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterContext, AdapterResult, PipelineContext


class LogConfig(AdapterConfig):
    """What is logged.

    Attributes:
        text: a template.
        level: of the line.
        max_characters: longer lines are cut.
    """

    text: TemplateText = "{{ payload }}"
    level: Literal["debug", "info", "warning", "error"] = "info"
    max_characters: int = 1000


class Log(Adapter[LogConfig]):
    """Logs a line (logger `tupletree.routes`) and lets the message pass unchanged."""

    Config = LogConfig

    def open(self, context: AdapterContext) -> None:  # noqa: ARG002 - the contract's
        self._text = Text(self.config.text, "log: text")
        self._level = logging.getLevelNamesMapping()[self.config.level.upper()]

    async def process(self, context: PipelineContext) -> AdapterResult:
        if context.logger.isEnabledFor(self._level):
            text = self._text.render(context)
            most = self.config.max_characters
            context.logger.log(self._level, "%s", text if len(text) <= most else f"{text[:most]}…")
        return AdapterResult(context.message)
