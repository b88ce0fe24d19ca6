"""Nothing is lost, doubled or told twice, whatever crashes when: seeded schedules of two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.routes.ledger.protocol import World

KINDS = ("database", "queue file")


def play(kind: str, folder: Path, seed: int, *, merging: bool) -> None:
    world = World(kind, folder, seed, merging=merging)
    try:
        world.run(90)
        world.judge()
    finally:
        world.close()


@pytest.mark.parametrize("merging", [False, True], ids=["singles", "batches"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(25))
def test_every_message_comes_to_what_its_id_says_and_each_completion_is_told_once(
    kind: str, seed: int, merging: bool, tmp_path: Path
) -> None:
    play(kind, tmp_path, seed, merging=merging)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(10))
def test_a_thousand_schedules(block: int, tmp_path: Path) -> None:
    for number in range(100):
        seed = 1000 + block * 100 + number
        folder = tmp_path / str(seed)
        folder.mkdir()
        play(KINDS[seed % 2], folder, seed, merging=bool(seed // 2 % 2))
