"""Errors are counted by kind: lines, ids and the like, in which those of one kind differ, are left out."""

from __future__ import annotations

from collections import Counter

from tupletree.cli.dead import kinds_of


def counted(errors: list[str]) -> dict[str, int]:
    kinds = kinds_of(errors)
    return Counter(kinds[error] for error in errors)


def test_errors_that_differ_in_lines_and_ids_are_one_kind() -> None:
    errors = [f"orders.jsonl:{number}: not an order" for number in range(100)]
    errors += [f"mail-{number}a: no address" for number in range(50)]
    assert counted(errors) == {"orders.jsonl:…: not an order": 100, "mail-…: no address": 50}


def test_a_number_that_takes_few_values_tells_kinds_apart() -> None:
    errors = [f"'{404 + 99 * (number % 2)}' for http://10.0.0.1:80/orders/{number}" for number in range(100)]
    assert counted(errors) == {
        "'404' for http://10.0.0.1:80/orders/…": 50,
        "'503' for http://10.0.0.1:80/orders/…": 50,
    }


def test_few_errors_are_left_as_they_are() -> None:
    errors = ["line 1: no", "line 2: no", "line 2: no", "no number"]
    assert counted(errors) == {"line 1: no": 1, "line 2: no": 2, "no number": 1}
    assert kinds_of([]) == {}
