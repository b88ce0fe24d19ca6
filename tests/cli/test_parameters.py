"""`--set name=value`: text is read as the annotation says, and every fault is reported at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from tupletree.cli.parameters import bind_parameters
from tupletree.errors import ConfigError


def factory(  # type: ignore[no-untyped-def]  # one parameter without annotation is meant
    paths: list[Path],
    out: Path = Path("out"),
    limit: int = 3,
    rate: float = 0.5,
    strict: bool = False,
    pattern: str = "",
    after: int | None = None,
    mode: Literal["fast", "safe"] = "safe",
    words: tuple[str, ...] = (),
    numbers: Sequence[int] = (),
    guessed=7,
) -> None: ...


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["paths=a"], {"paths": [Path("a")]}),
        (["paths=a,b", "paths=c"], {"paths": [Path("a"), Path("b"), Path("c")]}),
        (["paths="], {"paths": []}),
        (["paths=a", "out=x=y"], {"paths": [Path("a")], "out": Path("x=y")}),
        (["paths=a", "limit=-4", "rate=2"], {"paths": [Path("a")], "limit": -4, "rate": 2.0}),
        (["paths=a", "strict=yes"], {"paths": [Path("a")], "strict": True}),
        (["paths=a", "strict=0"], {"paths": [Path("a")], "strict": False}),
        (["paths=a", "pattern=^a,(b|c)$"], {"paths": [Path("a")], "pattern": "^a,(b|c)$"}),
        (["paths=a", "after=9"], {"paths": [Path("a")], "after": 9}),
        (["paths=a", "after=none"], {"paths": [Path("a")], "after": None}),
        (["paths=a", "mode=fast"], {"paths": [Path("a")], "mode": "fast"}),
        (["paths=a", "words=x,y"], {"paths": [Path("a")], "words": ("x", "y")}),
        (["paths=a", "numbers=1,2"], {"paths": [Path("a")], "numbers": [1, 2]}),
        (["paths=a", "guessed=8"], {"paths": [Path("a")], "guessed": 8}),
    ],
)
def test_text_is_read_as_the_annotation_says(settings: list[str], expected: dict[str, object]) -> None:
    bound = bind_parameters(factory, settings, where="here")
    assert bound == expected
    assert [type(value) for value in bound.values()] == [type(value) for value in expected.values()]


def test_every_fault_is_reported_at_once() -> None:
    settings = ["limt=3", "limit=many", "strict=perhaps", "mode=slow", "rate", "out=a", "out=b"]
    with pytest.raises(ConfigError) as caught:
        bind_parameters(factory, settings, where="here")
    told = [(finding.where, finding.expected or finding.next_step) for finding in caught.value.findings]
    assert len(told) == 7
    text = str(caught.value)
    assert "did you mean 'limit'?" in text
    assert "expected: int" in text
    assert "expected: true or false" in text
    assert "expected: one of fast, safe" in text
    assert "expected: name=value" in text
    assert "--set out=a --set out=b" in text
    assert "--set paths=VALUE" in text


@pytest.mark.parametrize("unfit", ["numbers=1,x", "limit=1.5", "limit=", "rate=fast", "out="])
def test_a_text_that_does_not_read_as_the_type_is_a_fault(unfit: str) -> None:
    with pytest.raises(ConfigError, match="are invalid"):
        bind_parameters(factory, ["paths=a", unfit], where="here")


def test_a_function_without_parameters_says_so() -> None:
    def bare() -> None: ...

    with pytest.raises(ConfigError) as caught:
        bind_parameters(bare, ["a=1"], where="topology.py:bare")
    assert "topology.py:bare takes no parameters" in str(caught.value)


def test_a_type_that_text_cannot_become_is_a_fault() -> None:
    def odd(call: Callable[[], Any] = print) -> None: ...

    with pytest.raises(ConfigError) as caught:
        bind_parameters(odd, ["call=print"], where="here")
    assert "Callable" in str(caught.value)
