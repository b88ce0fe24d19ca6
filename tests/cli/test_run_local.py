"""`tupletree run --runtime local`, as a person types it: results on stdout, everything else on stderr, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tupletree.sinks import read_rows

ROOT = Path(__file__).resolve().parents[2]

PRINTING = """\
from pathlib import Path

from tupletree import Topology, bolt
from tupletree.sinks import jsonl
from tupletree.sources import Line, items


@bolt
def chat(line: Line) -> Line:
    print("a bolt prints, without a line end", end="")
    return line


def topology(out: Path) -> Topology:
    t = Topology("chatty")
    lines = t.spout("lines", items([Line("a", "here", 1), Line("b", "here", 2)]))
    t.sink("out", jsonl(out)).shuffle(t.bolt("chat", chat).shuffle(lines))
    return t
"""


def tupletree(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tupletree", *map(str, arguments)]
    return subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_a_word_count_with_poison_and_flaky_lines_ends_with_code_3_and_its_summary_in_the_last_line(
    tmp_path: Path,
) -> None:
    trouble = {3: "poison", 7: "flaky"}
    lines = [f"{trouble.get(number % 17, 'plain')} w{number % 7} w1" for number in range(200)]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    settings = [f"paths={tmp_path / 'text'}", "poison=poison", "flaky=flaky", f"out={tmp_path / 'out'}"]
    ran = tupletree(
        *("run", ROOT / "examples" / "word_count.py", "--runtime", "local", "--summary", "json"),
        *(part for setting in settings for part in ("--set", setting)),
        *("--option", "backoff_initial_ms=1", "--state-dir", tmp_path / "state"),
        cwd=tmp_path,
    )
    assert ran.returncode == 3, ran.stderr
    summary = json.loads(ran.stdout.splitlines()[-1])
    living = [line for line in lines if not line.startswith("poison")]
    assert (summary["runtime"], summary["open"]) == ("local", 0)
    assert (summary["emitted"], summary["acked"], summary["dead"]) == (200, len(living), 200 - len(living))
    totals = Counter(word for line in living for word in line.split())
    counts = Counter((row["word"], row["count"]) for row in read_rows(tmp_path / "out"))
    assert counts == Counter((word, number) for word, total in totals.items() for number in range(1, total + 1))


def test_output_of_a_bolt_does_not_mix_with_the_results(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(PRINTING)
    ran = tupletree(*("run", "chatty.py", "--runtime", "local", "--set", "out=out", "--summary", "json"), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (only,) = ran.stdout.splitlines()
    assert json.loads(only)["outputs"] == {"out": 2}
    assert ran.stderr.count("a bolt prints, without a line end") == 2


def test_why_says_which_messages_a_local_run_keeps_the_history_of(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(PRINTING)
    command = ("run", "chatty.py", "--runtime", "local", "--set", "out=out", "--state-dir")
    ran = tupletree(*command, "state", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    asked = tupletree("why", "0", "--state-dir", "state", cwd=tmp_path)
    assert asked.returncode == 2
    assert "--option history=all" in asked.stderr
    ran = tupletree(*command, "all", "--append", "--option", "history=all", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    asked = tupletree("why", "0", "--state-dir", "all", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert [line.split()[-1] for line in asked.stdout.splitlines()] == ["emitted", "acked"]
