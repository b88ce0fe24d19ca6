"""Files as somebody would leave them who wants to end a run, or to have it remove what is not its own."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import msgspec

from tupletree.durable import pack

__all__ = ["write_hostile_files"]

NAMES = (
    "{n}.json", "0a{n}.json", "{n:032x}.json", "_{n}.json.1.0123abcd", "..{n}.json", ".{n}.json", "-{n}.json",
    "{n}\n.json",
    "{n}\x1b[2J.json", "{n} or 1=1.json", "{n}" + "x" * 100 + ".json", "{n}\u202e.json", "{n:010d}.jsonl", "{n}.jsonl",
    "{n}.epoch", "{n}.settle", "x{n:010d}.epoch", "{n}", "é{n}.json",
)  # fmt: skip


def write_hostile_files(folder: Path, count: int, seed: int, target: Path) -> None:
    """Fill a folder with files whose names and contents are drawn from a seed.

    `target` is what links lead to and paths inside them name; it must stay as it is.
    """
    folder.mkdir(exist_ok=True)
    draw = random.Random(seed)
    for number in range(count):
        path = folder / draw.choice(NAMES).format(n=number)
        kind = draw.random()
        if kind < 0.03:
            path.symlink_to(draw.choice([target, target / "precious.json", Path("/dev/zero"), Path("/nowhere")]))
        elif kind < 0.05:
            path.mkdir()
        elif kind < 0.07:
            os.mkfifo(path)
        elif kind < 0.08:
            os.link(target / "precious.json", path)
        else:
            path.write_bytes(_content(draw, number, target))


def _content(draw: random.Random, number: int, target: Path) -> bytes:
    depth = draw.choice([100, 1_000, 4_000, 100_000])
    away = str(target / "precious")
    texts = [
        json.dumps({"id": away, "letters": []}),
        json.dumps({"id": f"../../{away}", "letters": ["0-0"]}),
        json.dumps({"id": str(number), "letters": draw.choice([[], ["0-0"], [1], "0-0", [away], ["0-0"] * 10_000])}),
        json.dumps({"id": str(number), "letters": [], "extra": [[[]]]}),
        '{"id": ' + "[" * depth + "]" * depth + "}",
        '{"id": "x", "letters": [], "more": ' + '{"a":' * depth + "1" + "}" * depth + "}",
        '{"request": "pause", "drain_timeout_s": 1}x',
        json.dumps({"request": "drain", "drain_timeout_s": draw.choice([-5, 1e308, "1", [1]])}),
        json.dumps({"request": draw.choice(["dance", away, None]), "format": draw.choice([0, 2, "1"])}),
        json.dumps({"format": 1, "id": f"{number}-0", "letter": {"message_id": away}}),
        "",
        "\0" * 10,
        "9" * 5_000,
    ]
    kind = draw.random()
    if kind < 0.1:
        return draw.randbytes(draw.randrange(2_000))
    if kind < 0.15:
        return msgspec.msgpack.encode({"id": away, "letters": [away] * draw.randrange(9)})
    if kind < 0.2:
        return b"\x91" * depth
    if kind < 0.25:
        return b"".join(pack({"epoch": number, "run_id": away}, [draw.randbytes(50)]))
    if kind < 0.2505:
        return b"[" * 5_000_000
    return draw.choice(texts).encode()
