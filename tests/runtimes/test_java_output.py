"""The log stays one of JSON objects, whatever the JVM and its workers write."""

from __future__ import annotations

import json

from tupletree.runtimes.spark.java_output import as_json_lines


def test_objects_stay_and_what_stands_between_them_is_one_record() -> None:
    own = json.dumps({"message": "of a worker"})
    lines = [
        b"WARNING: Using incubator modules: jdk.incubator.vector",
        own.encode(),
        b"java.lang.Error: no",
        b"\tat Main.main(Main.java:1)",
        own.encode(),
        b"{no object}",
        b"caf\xe9",
        b"",
    ]
    first, trace, second, odd = as_json_lines(lines)
    assert first == second == own
    assert json.loads(trace)["message"] == "java.lang.Error: no\n\tat Main.main(Main.java:1)"
    assert json.loads(trace)["logger"] == "tupletree.java"
    assert json.loads(odd)["message"] == "{no object}\ncaf\\xe9\n"


def test_empty_lines_are_no_record() -> None:
    assert list(as_json_lines([b"", b"", b"WARNING: Using incubator modules: jdk.incubator.vector"])) == []
