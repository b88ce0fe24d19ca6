"""`tupletree routes`: pipelines in YAML. `documents` checks them, `running` runs them, `executions` asks and steers.

A command is added by importing its module.
"""

from tupletree.cli.routes import executions, running
from tupletree.cli.routes.documents import app

__all__ = ["app", "executions", "running"]
