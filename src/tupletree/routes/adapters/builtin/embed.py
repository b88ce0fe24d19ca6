"""`embed`: texts → vectors, in batches."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field, model_validator

from tupletree.routes.adapters.contract import (
    AdapterConfig,
    AdapterContext,
    AdapterResult,
    BatchAdapter,
    PipelineContext,
)
from tupletree.routes.adapters.paths import Path, PathText, TargetText, value_at

HASHING = "hashing"


class EmbedConfig(AdapterConfig):
    """How texts become vectors.

    Attributes:
        field: path of the text.
        into: where the vector is put, a list of floats of length 1 (by the L2 norm); a text without words has zeros.
        model: `hashing`: words, hashed, without a model and the same everywhere (needs the extra `embed`); any other:
            the name or folder of a model of the package sentence-transformers.
        dimensions: of hashed vectors.
        word_pairs: whether pairs of neighbouring words are hashed, too.
        size: texts of a full batch.
        max_bytes: of a batch's payloads; 0: no limit.
        max_age_s: seconds that a text waits for others.
    """

    field: PathText = "payload.text"
    into: TargetText = "payload.vector"
    model: str = HASHING
    dimensions: int = Field(default=1024, ge=2, le=2**20)
    word_pairs: bool = False
    size: int = Field(default=100, ge=1)
    max_bytes: int = Field(default=0, ge=0)
    max_age_s: float = Field(default=5.0, gt=0)

    @model_validator(mode="after")
    def _installed(self) -> EmbedConfig:
        package, extra = ("sklearn", "embed") if self.model == HASHING else ("sentence_transformers", "sentences")
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"the model {self.model} needs a package that is not installed: pip install 'tupletree[{extra}]'"
            )
        return self


class Embed(BatchAdapter[EmbedConfig]):
    """Gives each message a vector for its text."""

    Config = EmbedConfig

    def __init__(self, config: EmbedConfig) -> None:
        super().__init__(config)
        self.size, self.max_bytes, self.max_age_s = config.size, config.max_bytes, config.max_age_s

    _vectors: Callable[[list[str]], Any]

    async def open(self, context: AdapterContext) -> None:  # noqa: ARG002 - the contract's
        """Load the model, in a thread: its package takes seconds to be imported."""
        self._vectors = await asyncio.to_thread(_vectors_of, self.config)

    def process_batch(self, contexts: Sequence[PipelineContext]) -> list[AdapterResult]:
        field, into = Path(self.config.field), Path(self.config.into)
        texts = [value_at(field, context.message, str, "text") for context in contexts]
        vectors = self._vectors(texts)
        return [
            AdapterResult(into.put(context.message, [float(number) for number in vector]))
            for context, vector in zip(contexts, vectors)
        ]


def _vectors_of(config: EmbedConfig) -> Callable[[list[str]], Any]:
    if config.model == HASHING:
        from sklearn.feature_extraction.text import HashingVectorizer

        pairs = (1, 2 if config.word_pairs else 1)
        vectorizer: Any = HashingVectorizer(n_features=config.dimensions, norm="l2", ngram_range=pairs)
        return lambda texts: vectorizer.transform(texts).toarray()
    module: Any = importlib.import_module("sentence_transformers")
    model = module.SentenceTransformer(config.model)
    return lambda texts: model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
