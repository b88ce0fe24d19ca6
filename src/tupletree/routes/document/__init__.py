"""The document: a pipeline's YAML, typed, checked and explained."""

from tupletree.routes.document.drawing import to_dot, to_mermaid, to_text
from tupletree.routes.document.explaining import notes, to_yaml, values
from tupletree.routes.document.faults import CODES, DocumentError, Fault
from tupletree.routes.document.loading import Document, load, read
from tupletree.routes.document.sample import sample_files
from tupletree.routes.document.schema import document_keys, document_schema

__all__ = [
    "CODES",
    "Document",
    "DocumentError",
    "Fault",
    "document_keys",
    "document_schema",
    "load",
    "notes",
    "read",
    "sample_files",
    "to_dot",
    "to_mermaid",
    "to_text",
    "to_yaml",
    "values",
]
