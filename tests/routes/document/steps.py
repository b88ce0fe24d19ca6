"""Adapters that the documents of these tests name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tupletree.routes import Adapter, AdapterConfig, AdapterResult, BatchAdapter, PipelineContext


class ConvertConfig(AdapterConfig):
    max_bytes: int = 1000
    folder: Path = Path()
    kinds: tuple[str, ...] = ()
    strict: bool = False
    title: str = ""


class Convert(Adapter[ConvertConfig]):
    Config = ConvertConfig

    def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message)


class Nested(AdapterConfig):
    retries: int = 0


class NeedsConfig(AdapterConfig):
    url: str
    inner: Nested = Nested()


class Needs(Adapter[NeedsConfig]):
    Config = NeedsConfig

    def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message)


class BatchConfig(AdapterConfig):
    size: int = 100


class Batch(BatchAdapter[BatchConfig]):
    Config = BatchConfig

    def process_batch(self, contexts: Sequence[PipelineContext]) -> list[AdapterResult]:
        return [AdapterResult(context.message) for context in contexts]


class SwitchConfig(AdapterConfig):
    default: str = ""


class Switch(Adapter[SwitchConfig]):
    Config = SwitchConfig

    @classmethod
    def queues(cls, config: SwitchConfig) -> list[str]:
        return [config.default]

    def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message, queue=self.config.default)


class NoAdapter:
    pass
