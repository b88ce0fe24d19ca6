"""What the parts of one incarnation of a run share: each of them is there from the start to the end of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.outages import Outages


@dataclass(frozen=True)
class RunParts:
    """See the module docstring.

    Attributes:
        plan: the topology laid out.
        sinks: sink → absolute folder.
        outages: told of what is not available.
    """

    plan: Plan
    options: Options
    directory: StateDirectory
    accounts: Accounts
    sinks: Mapping[str, str]
    clock: Clock
    outages: Outages
