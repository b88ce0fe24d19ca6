"""`tupletree routes`: pipelines written in YAML. `documents` checks and explains them."""

from tupletree.cli.routes.documents import app

__all__ = ["app"]
