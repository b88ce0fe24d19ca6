"""The word count in pathway: `python pathway_count.py CORPUS`.

It reads the files itself, splits in Python and counts in its engine, which tells only the last count of each word.
"""

from __future__ import annotations

import sys

import pathway as pw
from corpus_lines import measure


def main(corpus: str) -> None:
    lines = pw.io.plaintext.read(corpus, mode="static")
    words = lines.select(word=pw.apply_with_type(str.split, list[str], lines.data)).flatten(pw.this.word)
    counts = words.groupby(words.word).reduce(words.word, total=pw.reducers.count())
    written = {"rows": 0, "checksum": 0}

    def write(key: pw.Pointer, row: dict[str, int], time: int, is_addition: bool) -> None:  # noqa: ARG001 - its names
        written["rows"] += row["total"] if is_addition else -row["total"]

    pw.io.subscribe(counts, write)

    def work() -> dict[str, int]:
        pw.run(monitoring_level=pw.MonitoringLevel.NONE)
        return written

    measure(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
