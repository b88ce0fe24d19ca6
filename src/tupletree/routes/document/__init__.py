"""The document: a pipeline's YAML, typed, checked and explained."""

from tupletree.routes.document.faults import DocumentError, Fault
from tupletree.routes.document.loading import Document, load, read

__all__ = ["Document", "DocumentError", "Fault", "load", "read"]
