"""Small mistakes at the start: each is named where it was made, with the next step."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Run
from tests.local.running import HANG_S
from tupletree import KeyedState, Topology, arrow_bolt, batch_bolt, bolt
from tupletree.config import Options, resolve_options
from tupletree.errors import CheckpointError, ConfigError, TopologyError
from tupletree.runtimes import run as api_run
from tupletree.sinks import foreach
from tupletree.sources import items


class Sale(msgspec.Struct, frozen=True):
    user: str
    item: str


def work(sale: Sale, k: int = 1) -> Sale:
    return sale


class Callable:
    def __call__(self, sale: Sale) -> Sale:
        return sale


@pytest.mark.parametrize("thing", [functools.partial(work, k=1), Callable()])
@pytest.mark.parametrize("decorator", [bolt, bolt(blocking=True), batch_bolt(size=2), arrow_bolt])
def test_what_is_no_function_is_no_bolt_and_the_error_says_so(decorator: Any, thing: Any) -> None:
    with pytest.raises(TopologyError, match="only a function can be made a bolt") as caught:
        decorator(thing)
    assert type(thing).__qualname__ in str(caught.value)


@pytest.mark.parametrize("table", ["tupletre", "Tupletree", "tuple_tree"])
def test_a_settings_table_of_another_name_is_named_with_its_line(tmp_path: Path, table: str) -> None:
    file = tmp_path / "tupletree.toml"
    file.write_text(f"# settings\n[{table}]\nmax_attempts = 7\n")
    with pytest.raises(ConfigError) as caught:
        resolve_options(code={}, file=file, environment={}, command_line=[])
    assert f"{file}:2" in str(caught.value)
    assert f"got: [{table}]" in str(caught.value)


def test_tables_of_other_tools_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "tupletree.toml"
    file.write_text("\ufeff[tupletree]\nmax_attempts = 7\n[tool.ruff]\nline-length = 80\n", encoding="utf-8")
    assert resolve_options(code={}, file=file, environment={}, command_line=[]).max_attempts == 7


def test_a_file_in_a_package_that_imports_from_it_is_to_be_named_as_a_module(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = tmp_path / "k2app" / "jobs"
    jobs.mkdir(parents=True)
    (tmp_path / "k2app" / "__init__.py").write_text("")
    (jobs / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for number, line in enumerate(["from ..common import x", "from k2app.common import x"]):
        (jobs / f"orders{number}.py").write_text(f"{line}\n")
        said = run("check", f"k2app/jobs/orders{number}.py")
        assert said.code == 2
        assert f"name it as a module: k2app.jobs.orders{number}" in said.err


@bolt(state=int)
def count(sale: Sale, total: KeyedState[int]) -> Sale:
    total.value += 1
    return sale


def run_with(snapshot: Path, state: Path, key: str) -> None:
    t = Topology("sales")
    counted = t.bolt("count", count).fields(t.spout("sales", items([Sale("a", "b")])), key)
    t.sink("out", foreach(lambda _: None)).shuffle(counted)
    api_run.run(t, runtime="local", options=Options(), state_dir=state, state_snapshot=snapshot).wait(HANG_S)


def test_a_snapshot_is_refused_where_the_grouping_key_changed(tmp_path: Path) -> None:
    run_with(tmp_path / "sales.snapshot", tmp_path / "1", "user")
    run_with(tmp_path / "sales.snapshot", tmp_path / "2", "user")
    with pytest.raises(CheckpointError, match="the key changed") as caught:
        run_with(tmp_path / "sales.snapshot", tmp_path / "3", "item")
    assert "fields(user)" in str(caught.value)
    assert "fields(item)" in str(caught.value)


def test_a_snapshot_that_is_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the state snapshot is a folder"):
        run_with(tmp_path, tmp_path / "1", "user")
