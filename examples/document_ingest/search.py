"""Searching the index that the pipeline wrote: the segments whose vectors are nearest to a question's."""

import asyncio
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tupletree.routes import AdapterContext, PipelineContext, RouteMessage
from tupletree.routes.adapters.builtin.embed import Embed
from tupletree.routes.document import load

PIPELINE = Path(__file__).with_name("pipeline.yaml")


@dataclass
class Found:
    """A document, and of its segments the one that is nearest."""

    score: float
    document: str
    title: str
    text: str


def vector_of(question: str) -> list[float]:
    """The question's vector, by the pipeline's own adapter: both must be made the same way."""
    route = load(PIPELINE).routes["index"]
    spec = next(adapter for adapter in route.adapters if adapter.type_name == "embed")
    embed = spec.adapter(spec.config)
    assert isinstance(embed, Embed)
    asyncio.run(embed.open(AdapterContext(route.name, spec.name, 0)))
    [result] = embed.process_batch([PipelineContext(RouteMessage({"titled": question}))])
    assert result.message is not None
    vector: list[float] = result.message.payload["vector"]
    return vector


def search(index: str, question: str, count: int = 5) -> list[Found]:
    """The nearest documents, the nearest first, by the cosine of their vectors with the question's."""
    connection = sqlite3.connect(f"file:{index}?mode=ro", uri=True)
    try:
        rows: list[Any] = connection.execute("SELECT document, title, text, vector FROM segments").fetchall()
    finally:
        connection.close()
    if not rows:
        return []
    vectors = np.frombuffer(b"".join(row[3] for row in rows), dtype=np.float32).reshape(len(rows), -1)
    scores = vectors @ np.asarray(vector_of(question), dtype=np.float32)  # they have the length 1
    best: dict[str, Found] = {}
    for place in np.argsort(-scores, kind="stable"):
        document, title, text, _ = rows[place]
        best.setdefault(document, Found(float(scores[place]), document, title, text))
        if len(best) == count:
            break
    return list(best.values())
