"""Which message ids are the same, and how they are written down."""

from __future__ import annotations

import enum
import json
from itertools import combinations
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree.errors import CheckpointError, ConnectorError
from tupletree.tracking.message_ids import id_from_key, id_from_plain, message_key, plain_id

if TYPE_CHECKING:
    from tupletree.ids import MessageId

LOOKALIKES: list[MessageId] = [
    0, False, "", b"", (), 1, True, "1", b"1", (0,), (False,), ("",), (b"",), ((),), (1,), (True,), ((1,),), ((True,),),
    "a", b"a", ("a", b"a"), (b"a", "a"),
]  # fmt: skip

ids = st.recursive(
    st.one_of(
        st.integers(-(2**70), 2**70),
        st.booleans(),
        st.binary(max_size=3),
        st.text(st.characters(codec=None, exclude_categories=()), max_size=3),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)


class Colour(enum.StrEnum):
    RED = "red"


def same(first: object, second: object) -> bool:
    """Equal with types, at every depth."""
    return repr(first) == repr(second)


def test_ids_that_look_the_same_are_different_ids() -> None:
    assert all(message_key(first) != message_key(second) for first, second in combinations(LOOKALIKES, 2))


@given(ids, ids)
def test_keys_are_equal_exactly_when_values_and_types_are(first: MessageId, second: MessageId) -> None:
    assert (message_key(first) == message_key(second)) == same(first, second)


@given(ids)
def test_a_key_leads_back_to_its_id(message_id: MessageId) -> None:
    assert same(id_from_key(message_key(message_id)), message_id)


@given(ids)
def test_an_id_survives_json_with_its_types(message_id: MessageId) -> None:
    text = json.dumps(plain_id(message_id))
    text.encode()
    assert same(id_from_plain(json.loads(text)), message_id)


@pytest.mark.parametrize("wrong", [0.0, None, Colour.RED, [1], (1, None), {"a": 1}])
def test_ids_that_would_not_survive_a_restart_are_refused(wrong: Any) -> None:
    with pytest.raises(ConnectorError, match="message id"):
        message_key(cast("MessageId", wrong))


@pytest.mark.parametrize("wrong", [None, 1.5, {"what": "1"}, {"bytes": 1}])
def test_a_damaged_id_is_reported(wrong: Any) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        id_from_plain(wrong)
