"""Secrets are in no repr, error, log, file or other process; and there are ways to give one that no list shows."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import msgspec
import pytest

from tupletree import ConnectorError, Secret, Topology
from tupletree.bolts.effects import TaskPlace
from tupletree.cli.main import main
from tupletree.cli.parameters import bind_parameters
from tupletree.errors import ConfigError, RuntimeUnavailableError
from tupletree.sinks import sql
from tupletree.topology.changes.fingerprint import fingerprint
from tupletree.topology.model import TargetRef

HIDDEN = "hunter2"


class Count(msgspec.Struct, frozen=True):
    word: str
    count: int


URLS = [
    f"postgresql+psycopg://me:{HIDDEN}@127.0.0.1:1/orders",
    f"postgresql+psycopg://127.0.0.1:1/orders?user=me&password={HIDDEN}",
    f"postgresql+psycopg://me@127.0.0.1:1/orders?sslpassword={HIDDEN}&sslmode=require",
    f"mssql+pyodbc:///?odbc_connect=Driver%3DX%3BUid%3Dme%3BPwd%3D{HIDDEN}",
    f"nosuch+driver://me:{HIDDEN}@host/orders",
]


@pytest.mark.parametrize("url", URLS)
def test_a_url_shows_dialect_host_and_database_only(url: str) -> None:
    sink = sql(url, "counts")
    assert sink.shown_url == url.partition("?")[0].replace(f"me:{HIDDEN}@", "").replace("me@", "")
    with pytest.raises((ConnectorError, RuntimeUnavailableError)) as failed:
        sink.open(TaskPlace("t", "out", 1, 0, 1, input_types=(Count,)))
    assert HIDDEN not in repr(sink) + str(sink) + str(failed.value)


def test_a_driver_that_quotes_what_it_was_given_is_not_quoted() -> None:
    sink = sql(URLS[3], "counts")
    said = f"[X] cannot connect: 'Driver=X;Uid=me;Pwd={HIDDEN}' (Pwd={HIDDEN})"
    assert HIDDEN not in str(sink._unreachable(RuntimeError(said)))


@pytest.mark.parametrize("url", [f"postgres//me:{HIDDEN}@host/orders", f"postgresql://host:{HIDDEN}/orders", HIDDEN])
def test_what_is_no_url_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigError, match="no database URL") as refused:
        sql(url, "counts")
    assert HIDDEN not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_secret_is_shown_nowhere_and_leaves_in_no_form() -> None:
    secret = Secret(HIDDEN)
    assert secret.reveal() == HIDDEN
    assert HIDDEN not in str(secret) + repr(secret)
    assert HIDDEN not in f"{secret} {secret!r} {secret:>20} {[secret]} {TargetRef('m', 't', '.', {'url': secret})}"
    assert copy.deepcopy({"url": secret}) == {"url": Secret(HIDDEN)}
    for encode in (pickle.dumps, json.dumps, msgspec.json.encode, msgspec.msgpack.encode):
        with pytest.raises((TypeError, NotImplementedError)) as refused:
            encode(secret)
        assert HIDDEN not in str(refused.value)


def of_secrets(url: Secret[str], port: Secret[int] | None = None, words: str = "", paths: list[Path] = []) -> None:  # noqa: B006
    """What a topology's function may take."""


def bind(*settings: str, **environment: str) -> dict[str, object]:
    return bind_parameters(of_secrets, settings, where="t.py", environment=environment)


def test_values_come_from_files_and_variables(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{HIDDEN}\n")
    (tmp_path / "paths").write_text("a,b")
    bound = bind(f"url=@{tmp_path / 'url'}", f"paths=@{tmp_path / 'paths'}", "words=$WORDS", WORDS="x=y")
    assert bound == {"url": Secret(HIDDEN), "paths": [Path("a"), Path("b")], "words": "x=y"}
    assert bind("url=${URL}", URL=HIDDEN) == {"url": Secret(HIDDEN)}
    assert bind("url=$URL", "port=$PORT", URL=HIDDEN, PORT="80") == {"url": Secret(HIDDEN), "port": Secret(80)}
    assert bind("url=x", "port=none") == {"url": Secret("x"), "port": None}


@pytest.mark.parametrize(
    ("text", "meant"), [("@@home", "@home"), ("$$HOME", "$HOME"), ("$5", "$5"), ("a@b", "a@b"), ("$", "$")]
)
def test_other_texts_stand_for_themselves(text: str, meant: str) -> None:
    assert bind("url=x", f"words={text}")["words"] == meant


def test_what_is_not_there_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        bind(f"url=@{tmp_path / 'gone'}", "words=$GONE")
    text = str(refused.value)
    assert "gone' cannot be read: No such file" in text
    assert "the environment has no variable GONE" in text
    assert "is written $$" in text


def test_errors_about_a_secret_do_not_have_it() -> None:
    with pytest.raises(ConfigError) as refused:
        bind("url=x", f"port={HIDDEN}", f"ulr={HIDDEN}")
    assert "port=***" in str(refused.value)
    assert "did you mean 'url'" in str(refused.value)
    assert HIDDEN not in str(refused.value)


TOPOLOGY = """
from typing import NamedTuple

from tupletree import Secret, Topology
from tupletree.sinks import sql
from tupletree.sources import items


class Count(NamedTuple):
    word: str
    count: int


def topology(url: Secret[str]) -> Topology:
    t = Topology("kept")
    t.sink("out", sql(url, "counts")).shuffle(t.spout("counts", items([Count("a", 1)])))
    return t
"""


def test_a_run_leaves_its_secret_in_no_file_and_on_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "kept_secret.py"
    target.write_text(TOPOLOGY)
    monkeypatch.setenv("ORDERS_URL", URLS[1])
    place = ["--state-dir", str(tmp_path / "state"), "--option", "max_restarts=0"]
    code = main(["run", str(target), "--runtime", "local", "--set", "url=$ORDERS_URL", *place])
    said = capsys.readouterr()
    assert code == 1
    assert "the database failed" in said.err
    assert HIDDEN not in said.out + said.err
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if HIDDEN.encode() in path.read_bytes()] == []


def test_a_checkpoint_remembers_nothing_of_it() -> None:
    t = Topology("kept")
    from tupletree.sources import items

    t.sink("out", sql(Secret(URLS[0]), "counts")).shuffle(t.spout("counts", items([Count("a", 1)])))
    assert HIDDEN not in repr(fingerprint(t.build()))
