"""Adapters: what a route does to a message, step by step.

`contract` is what people write, `functions` makes adapters of functions, `registry` finds them by name, `conditions`
says for which messages they are called, `paths` finds values in messages, and `builtin` holds those that come with
Tupletree.
"""

from tupletree.routes.adapters.conditions import Condition
from tupletree.routes.adapters.registry import UnknownAdapterError, adapter, find, names, reference

__all__ = ["Condition", "UnknownAdapterError", "adapter", "find", "names", "reference"]
