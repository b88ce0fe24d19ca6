"""Prometheus metrics of routes, as a scraper gets them."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.routes.running.test_pipelines import fan_out
from tupletree.errors import ConfigError

HANG_S = 60.0


def test_metrics_say_how_many_messages_of_each_route_are_in_each_state_and_queue(tmp_path: Path) -> None:
    with fan_out(tmp_path).run() as running, running.serve_metrics(0) as port:
        running.execute({"count": 10}, route="split").wait(HANG_S)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    lines = text.splitlines()
    for line in (
        'tupletree_route_messages{pipeline="p",route="split",state="done"} 1.0',
        'tupletree_route_messages{pipeline="p",route="judge",state="done"} 8.0',
        'tupletree_route_messages{pipeline="p",route="judge",state="filtered"} 1.0',
        'tupletree_route_messages{pipeline="p",route="judge",state="dead"} 1.0',
        'tupletree_route_attempts_total{pipeline="p",route="judge",what="failed"} 3.0',
        'tupletree_route_queue_messages{pipeline="p",queue="q.judge",route="judge",state="dead"} 1.0',
    ):
        assert line in lines, text
    assert any(line.startswith('tupletree_state{runtime="local"') for line in lines)


def test_a_pipeline_that_does_not_run_here_has_no_metrics(tmp_path: Path) -> None:
    with fan_out(tmp_path).open() as connected, pytest.raises(ConfigError, match="does not run here"):
        connected.serve_metrics(0)
