"""What the models of the format share: names, numbers, and that unknown keys are faults."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
MAX_QUEUE_NAME = 200


def _legal_name(text: str) -> str:
    if LEGAL_NAME.fullmatch(text):
        return text
    expected = "a letter or digit, then letters, digits, '.', '_' or '-', at most 100 in all"
    raise PydanticCustomError("name", "this name is not allowed", {"expected": expected})


def _legal_queue(text: str) -> str:
    if text.strip() == text and text.isprintable() and 0 < len(text) <= MAX_QUEUE_NAME:
        return text
    expected = f"1 to {MAX_QUEUE_NAME} characters, no control characters, no spaces around it"
    raise PydanticCustomError("name", "this name of a queue is not allowed", {"expected": expected})


Name = Annotated[
    str, AfterValidator(_legal_name), WithJsonSchema({"type": "string", "pattern": f"^{LEGAL_NAME.pattern}$"})
]
QueueName = Annotated[str, AfterValidator(_legal_queue), WithJsonSchema({"type": "string", "minLength": 1})]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)]
SomeSeconds = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)]


LEVEL = re.compile(r"off|failures|full|sampled:(?P<share>0?\.[0-9]+|1(?:\.0*)?)")
LEVEL_SCHEMA = r"^(off|failures|full|sampled:(0?\.[0-9]+|1(\.0*)?))$"
"""The same for JSON Schema, whose expressions have no named groups."""


def _level(text: str) -> str:
    found = LEVEL.fullmatch(text)
    if found and (found["share"] is None or float(found["share"]) > 0):
        return text
    expected = "off, failures, full, or sampled:SHARE, with a share above 0 and at most 1"
    raise PydanticCustomError("level", "no level of lineage", {"expected": expected})


Level = Annotated[str, AfterValidator(_level), WithJsonSchema({"type": "string", "pattern": LEVEL_SCHEMA})]


class Part(BaseModel):
    """A part of the document: unknown keys are faults, nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
