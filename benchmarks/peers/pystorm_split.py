"""A split bolt of pystorm over Storm's JSON protocol, alone: `python pystorm_split.py CORPUS`.

What would be Storm is a file with the handshake and one message per line of the corpus; what the bolt says goes to
/dev/null. So this is the most that one such bolt can do, with nobody else in the pipeline.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from pathlib import Path

from corpus_lines import measure, read_lines
from pystorm.bolt import Bolt
from pystorm.exceptions import StormWentAwayError

emitted = {"rows": 0, "checksum": 0}


class SplitBolt(Bolt):
    """Emits each word of a line; anchored and acked by pystorm."""

    def process(self, tup: object) -> None:
        for word in tup.values[0].split():  # type: ignore[attr-defined]  # pystorm has no types
            emitted["rows"] += 1
            self.emit([word], need_task_ids=False)


def main(corpus: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        handshake = {"pidDir": folder, "conf": {}, "context": {"taskid": 1, "task->component": {"1": "split"}}}
        messages = Path(folder, "messages")
        with messages.open("w") as file:
            file.write(json.dumps(handshake) + "\nend\n")
            for number, line in enumerate(read_lines(corpus)):
                message = {"id": str(number), "comp": "lines", "stream": "default", "task": 2, "tuple": [line]}
                file.write(json.dumps(message) + "\nend\n")
        with messages.open("rb") as given, io.FileIO(os.devnull, "w") as said:
            bolt = SplitBolt(given, said)

            def work() -> dict[str, int]:
                # The loop of `Component.run`, which would end the process where its input does.
                storm_conf, context = bolt.read_handshake()
                bolt._setup_component(storm_conf, context)  # noqa: SLF001 - see above
                try:
                    while True:
                        bolt._run()  # noqa: SLF001 - see above
                except StormWentAwayError:
                    return emitted

            measure(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
