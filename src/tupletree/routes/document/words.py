"""What a word without quotes means: a number, true, false, nothing, or text.

The values are those on which the readers of YAML agree. Where YAML 1.1 and 1.2 read a word differently (`on`, `12:30`,
`010`), it is refused: one of two readers would be wrong. `1_000` is a number here, as numbers are written in Python.
"""

from __future__ import annotations

import math
import re
from typing import Any

_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F_]*[0-9a-fA-F][0-9a-fA-F_]*")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")
_TIME = re.compile(r"[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_LEADING_ZERO = re.compile(r"[-+]?0o?[0-9_]+(?:\.[0-9_]*)?")
_BINARY = re.compile(r"[-+]?0b[01_]+|[-+]0x[0-9a-fA-F_]+")
_MOST_DIGITS = 4000


class AmbiguousWordError(ValueError):
    """The readers of YAML do not agree on this word.

    Attributes:
        expected: how to write what is meant.
    """

    def __init__(self, what: str, expected: str) -> None:
        super().__init__(what)
        self.expected = expected


def read_word(text: str) -> Any:
    """The value of a word without quotes.

    Raises:
        AmbiguousWordError: it means different things to different readers, or no number can hold it.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    first = text[0]
    if not (first.isascii() and (first.isdigit() or first in "-+.")):
        if (meaning := _SWITCHES.get(text.lower())) is not None and text in {text.lower(), text.upper(), text.title()}:
            raise AmbiguousWordError(
                f"{text} is {meaning} for some readers of YAML and text for others",
                f'{meaning}, or "{text}" for the text',
            )
        return text
    if _TIME.fullmatch(text):
        raise AmbiguousWordError(f"{text} is a number in base 60 for some readers of YAML", f'"{text}" for the text')
    if _WHOLE.fullmatch(text):
        return _whole(text)
    if _LEADING_ZERO.fullmatch(text):
        raise AmbiguousWordError(
            f"{text} is an octal number for some readers of YAML and a decimal one for others",
            f'a number without a 0 in front, or "{text}" for the text',
        )
    if _BINARY.fullmatch(text):
        raise AmbiguousWordError(f"{text} is a number for some readers of YAML only", f'a decimal number, or "{text}"')
    if _HEXADECIMAL.fullmatch(text):
        return int(text.replace("_", ""), 16)
    return _number(text) if _NUMBER.fullmatch(text) else text


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise AmbiguousWordError("this number has too many digits", f"at most {_MOST_DIGITS}, or text in quotes")
    return int(text.replace("_", ""))


def _number(text: str) -> float:
    number = float(text.replace("_", ""))
    if math.isinf(number):
        raise AmbiguousWordError("this number is larger than any that a computer holds", 'a smaller one, or ".inf"')
    return number
