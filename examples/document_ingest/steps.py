"""Three small adapters of the pipeline: functions from payload to payload."""

import re
import zlib
from array import array
from typing import Any

from tupletree.routes import AdapterResult, PipelineContext

UNDERLINE = re.compile(r"^[*=\-~^]{3,}$\n?", re.MULTILINE)
MARKED = re.compile(r'"([^"\n]+)"|\*([^*\n]+)\*')


def flaky(context: PipelineContext, *, every: int = 10) -> AdapterResult:
    """A service that does not answer at first: the first attempt of about one document in `every` fails."""
    path = context.message.payload["path"]
    if context.attempt == 1 and zlib.crc32(path.encode()) % every == 0:
        raise OSError("the converter did not answer")
    return AdapterResult(context.message)


def convert(payload: dict[str, Any]) -> dict[str, Any] | None:
    """Marked-up text → plain text and its title; a document without text ends here."""
    text = UNDERLINE.sub("", payload["content"]).strip()
    text = MARKED.sub(lambda found: found[1] or found[2], text)
    if not text:
        return None
    return {"path": payload["path"], "title": text.partition("\n")[0], "text": text}


def pack(payload: dict[str, Any]) -> dict[str, Any]:
    """A vector as 32-bit floats, which take a tenth of the space of text."""
    return {**payload, "vector": array("f", payload["vector"]).tobytes()}
