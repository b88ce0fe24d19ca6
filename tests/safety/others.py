"""Acting as another user of this host: a forked process that gives up root for the user nobody."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["NOBODY", "as_other", "needs_root"]

NOBODY = 65_534

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


def as_other(act: Callable[[], Any]) -> Any:
    """What the function returns (as JSON) when user 65534 calls it. AssertionError if it raises.

    In a forked process, so it must not wait for threads of this one.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                answer = {"answer": act()}
            except BaseException:  # noqa: BLE001 - it is told
                answer = {"error": traceback.format_exc()}
            with os.fdopen(write_end, "w") as out:
                json.dump(answer, out)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as into:
        said = into.read()
    os.waitpid(child, 0)
    answer = json.loads(said)
    assert "error" not in answer, answer["error"]
    return answer["answer"]
