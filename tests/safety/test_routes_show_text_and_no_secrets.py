"""Pipelines: what messages say is only shown, secrets are not, and files are private."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from tests.safety.test_text_from_outside_is_only_shown import HOSTILE, is_safe
from tupletree.cli.lineage import print_tree
from tupletree.cli.main import main
from tupletree.cli.progress import progress_line
from tupletree.queues import Failure, Letter, Message, connect, open_queue
from tupletree.routes import Pipeline
from tupletree.routes.lineage.answers import Call, Tree, TreeMessage
from tupletree.runtimes.api import Progress
from tupletree.tracking.outages import ShownOutage

TEXT = HOSTILE.replace("\ud800", "")
PASSWORD = "s3cr3t!"

DOCUMENT = """
version: 1
pipeline: shown
routes:
  take:
    inbound: {queue: q.take}
    adapters: [{type: "tests.safety.test_routes_show_text_and_no_secrets:Refuse"}]
    error_handling: {max_retries: 0}
    outbound: [{queue: q.next}]
  next:
    inbound: {queue: q.next}
"""


def Refuse(payload: object) -> object:  # noqa: N802 - named as classes of adapters are
    """An adapter that fails with what the message says."""
    if isinstance(payload, dict) and payload.get("fail"):
        raise ValueError(payload["fail"])
    return payload


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_TOKEN", PASSWORD)
    (tmp_path / "shown.yaml").write_text(DOCUMENT)
    return tmp_path


@pytest.fixture
def ended(place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A run whose messages, ids and errors are hostile; the execution's id is as well."""
    with Pipeline.load("shown.yaml").open() as idle:
        idle.execute({"fail": TEXT}, route="take", headers={"h": TEXT}, execution=TEXT)
        idle.execute({"fail": TEXT}, route="take", execution="plain")
    queue = f"sqlite:///{place}/.tupletree/routes/shown/pipeline.db"
    with connect(f"{queue}?queue=q.take") as broker:
        broker.publish("q.take", [Message(body=b"{}", id=TEXT, headers={"h": TEXT})])
        broker.publish("q.next", [Message(body=TEXT.encode(), id=TEXT)])
    for execution in (TEXT, "plain"):
        given = ["--payload", "{}", "--route", "take"]
        assert main(["routes", "run", "shown.yaml", "--wait", "--execution", execution, *given]) in {0, 3}
    told = capsys.readouterr()
    assert is_safe(told.out)
    assert is_safe(told.err)
    return queue


def test_no_command_of_pipelines_obeys_what_messages_say(ended: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Pipeline.load("shown.yaml").open() as idle:
        (dead,) = idle.services.ledger.messages("plain", state="dead")
    for command in (
        ["routes", "list"],
        ["routes", "status", TEXT],
        ["routes", "status", "plain"],
        ["routes", "status", TEXT + "x"],
        ["routes", "wait", TEXT, "--timeout-s", "0"],
        ["routes", "pause", TEXT],
        ["routes", "resume", TEXT],
        ["routes", "cancel", TEXT, "--reason", TEXT],
        ["routes", "settle-lost", TEXT],
        ["routes", "replay", TEXT + "x"],
        ["routes", "run", TEXT],
        ["routes", "validate", TEXT],
        ["lineage", "tree", TEXT],
        ["lineage", "tree", "plain"],
        ["lineage", "failures", "plain"],
        ["lineage", "failures", TEXT],
        ["lineage", "stats", "plain"],
        ["lineage", "tree", TEXT + "x"],
        ["why", dead.id],
        ["why", TEXT],
        ["queues", "depth", ended],
        ["queues", "dead", "list", f"{ended}?queue=q.take"],
        ["queues", "peek", f"{ended}?queue=q.take"],
        ["queues", "peek", f"{ended}?queue=q.next"],
        ["queues", "peek", f"{ended}?queue={TEXT}"],
    ):
        main(command)
        told = capsys.readouterr()
        assert is_safe(told.out), command
        assert is_safe(told.err), command
        assert [line for line in (told.out + told.err).splitlines() if line.startswith("forged")] == [], command


def modes_of(place: Path) -> dict[str, int]:
    """Files and folders that others can get at."""
    found = {}
    for folder, folders, files in os.walk(place):
        for name in [*folders, *files]:
            path = Path(folder, name)
            if mode := stat.S_IMODE(path.lstat().st_mode) & 0o077:
                found[str(path.relative_to(place))] = mode
    return found


@pytest.mark.parametrize("store", ["", "ledger: 'sqlite:///own.db'\n", "lineage: {store: 'parquet://rows'}\n"])
def test_all_files_of_a_pipeline_are_private_whatever_the_umask(store: str, place: Path) -> None:
    (place / "shown.yaml").write_text(DOCUMENT + store)
    before = os.umask(0)
    try:
        assert main(["routes", "run", "shown.yaml", "--wait", "--route", "take", "--payload", '{"fail": "x"}']) == 3
    finally:
        os.umask(before)
    (place / "shown.yaml").chmod(0o600)
    found = modes_of(place)
    for above in (".tupletree", ".tupletree/routes"):  # others may look, and see nothing but names
        assert found.pop(above) == 0o055
    assert found == {}


SECRET_DOCUMENT = """
version: 1
pipeline: secretive
ledger: "postgresql://me:s3cr3t!@db.example/own?sslpassword=s3cr3t!"
queues:
  q.take: "redis://user:s3cr3t!@localhost:1/0"
lineage: {store: "postgresql://me:s3cr3t!@localhost:1/x"}
settings:
  note: !file note.txt
  dsn: "host=h password=s3cr3t!"  # s3cr3t! is what it was
  credentials: [{user: me, key: s3cr3t!}]
  api_keys: ["s3cr3t!", other]
  private_key: |
    -----BEGIN-----
    s3cr3t!
  pwd: s3c
  shop: "${SHOP_TOKEN}"
routes:
  take:
    inbound: {queue: q.take}
    adapters:
      - type: http_request
        config:
          url: "https://api.example/x?token=s3cr3t!"
          headers: {X-Key: "s3cr3t!"}
      - type: write_sql
        config: {url: "sqlite:///s3cr3t!.db", table: t, columns: {id: message.id}}
"""


def test_what_is_kept_of_a_document_has_none_of_its_secrets(place: Path) -> None:
    (place / "note.txt").write_text("see postgresql://me:s3cr3t!@db.example/x?sslpassword=s3cr3t!")
    (place / "secretive.yaml").write_text(SECRET_DOCUMENT)
    loaded = Pipeline.load("secretive.yaml")
    assert PASSWORD not in loaded.spec.source
    assert "s3c\n" not in loaded.spec.source
    assert "postgresql://***@db.example/x" in loaded.spec.source


def test_explain_shows_none_of_the_secrets(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "note.txt").write_text("postgresql://me:s3cr3t!@db.example/x")
    (place / "secretive.yaml").write_text(SECRET_DOCUMENT)
    for command in (["explain"], ["explain", "--json"], ["graph"], ["validate"]):
        main(["routes", command[0], "secretive.yaml", *command[1:]])
        told = capsys.readouterr()
        assert PASSWORD not in told.out + told.err, command


@pytest.mark.parametrize("given", ["$SHOP_QUEUES", "@url.txt"])
def test_urls_with_passwords_need_not_be_on_the_command_line(
    given: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{place}/shop.db"
    monkeypatch.setenv("SHOP_QUEUES", url)
    (place / "url.txt").write_text(f"{url}\n")
    with connect(f"{url}?queue=orders") as broker:
        broker.declare("orders")
    assert main(["queues", "depth", given]) == 0
    assert "orders" in capsys.readouterr().out
    assert main(["routes", "list", "--ledger", given]) in {0, 1, 2}
    assert "SHOP_QUEUES" not in capsys.readouterr().err
    for missing in ("$NO_SUCH_QUEUES", "@none.txt"):
        assert main(["queues", "depth", missing]) == 2
        assert "cannot be looked up" in capsys.readouterr().err


def test_the_log_of_the_http_library_has_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    import httpx

    from tupletree.routes.adapters.builtin import http

    assert http.__name__ == "tupletree.routes.adapters.builtin.http"  # its import is what does it
    with caplog.at_level(logging.INFO, logger="httpx"):
        transport = httpx.MockTransport(lambda request: httpx.Response(200))
        httpx.Client(transport=transport).get("https://api.example/x?token=s3cr3t!&page=1")
    assert PASSWORD not in caplog.text
    assert "page=1" in caplog.text


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, which is safe and has something in it that had to be made so."""
    told = capsys.readouterr()
    assert is_safe(told.out)
    assert is_safe(told.err)
    assert "0;ti" in told.out
    return told.out


def test_bodies_and_reasons_of_a_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/shown.db?queue=q"
    with open_queue(url) as queue:
        queue.publish([Message(id="dead", body=TEXT.encode()), Message(id="failed", body=TEXT.encode())])
        dead, failed = queue.lease(2)
        queue.dead_letter([Letter(handle=dead.handle, reason=TEXT)])
        queue.fail([Failure(handle=failed.handle, reason=TEXT)])
    for command in (["peek"], ["dead"], ["peek", "--json"], ["dead", "--json"], ["drain"]):
        assert main(["queues", *command, url]) == 0
        assert said(capsys).count("0;ti") >= (1 if command == ["drain"] else 2), "body and reason"


def test_names_of_a_tree_of_messages(capsys: pytest.CaptureFixture[str]) -> None:
    call = Call(
        message="m", position=0, attempt=1, started_s=0.0, ended_s=1.0, execution="e", pipeline="p", route="r",
        adapter=TEXT, status="failed", error=TEXT,
    )  # fmt: skip
    one = TreeMessage(id="m", calls=[call], state="dead", children=[TEXT])
    print_tree(Tree(asked="m", is_execution=False, roots=["m"], messages={"m": one, TEXT: TreeMessage(id=TEXT)}))
    assert said(capsys).count("0;ti") == 3, "a name, an adapter and an error"


def test_why_an_execution_was_cancelled(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Pipeline.load("shown.yaml").open() as idle:
        idle.execute({}, route="take", execution="waits")
    assert main(["routes", "cancel", "waits", "--reason", TEXT]) == 0
    capsys.readouterr()
    assert main(["routes", "status", "waits"]) in {0, 1, 3}
    said(capsys)


def test_outages_in_the_line_of_progress(capsys: pytest.CaptureFixture[str]) -> None:
    print(progress_line(Progress(emitted=1, state="running", outages=[ShownOutage(TEXT, TEXT, 1.0, 1.0)])))
    said(capsys)
