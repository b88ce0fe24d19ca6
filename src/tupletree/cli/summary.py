"""How a run ended, as text for people and as one line of JSON for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tupletree.escaping import escape

if TYPE_CHECKING:
    from tupletree.runtimes.base import Summary

__all__ = ["summary_json", "summary_text"]


def summary_json(summary: Summary) -> str:
    """One line, one object; keys are added in later versions, never renamed."""
    return json.dumps(
        {
            "topology": summary.topology,
            "runtime": summary.runtime,
            "emitted": summary.emitted,
            "acked": summary.acked,
            "failed": summary.failed,
            "retried": summary.retried,
            "dead": summary.dead,
            "open": summary.open,
            "seconds": round(summary.seconds, 3),
            "outputs": dict(summary.outputs),
            "state_dir": str(summary.state_dir),
        }
    )


def summary_text(summary: Summary) -> str:
    """A few lines that account for every message."""
    lines = [
        f"{summary.topology} on {summary.runtime}: {summary.emitted:,} messages in {summary.seconds:.1f} s",
        f"  acked  {summary.acked:>12,}",
        f"  dead   {summary.dead:>12,}",
        f"  open   {summary.open:>12,}",
        f"  failed attempts {summary.failed:,}, retried {summary.retried:,}",
    ]
    if summary.outputs:
        width = max(map(len, summary.outputs))
        lines += [f"  sink {name:<{width}}  {rows:,} rows" for name, rows in summary.outputs.items()]
    lines.append(f"  state in {summary.state_dir}")
    if summary.dead:
        lines.append(f"  next: tupletree dead list --state-dir {summary.state_dir}")
    return "\n".join(map(escape, lines))
