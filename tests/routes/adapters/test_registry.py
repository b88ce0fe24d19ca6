from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark import cloudpickle

from tests.routes.adapters import steps
from tests.routes.adapters.calls import called, payload_of, pieces_of
from tupletree.errors import ConfigError
from tupletree.routes import Emitted
from tupletree.routes.adapters import UnknownAdapterError, adapter, find, names, reference, registry

ROOT = Path(__file__).resolve().parents[3]
HERE = "tests.routes.adapters.steps"


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_every_built_in_adapter_is_found_by_its_name_and_its_reference() -> None:
    for name in registry.BUILT_IN:
        cls = find(name)
        assert find(reference(cls)) is cls
        assert cls.__doc__
        assert cls.Config.__doc__


def test_a_class_is_found_by_module_and_name() -> None:
    assert find(f"{HERE}:Shout") is steps.Shout
    assert reference(steps.Shout) == f"{HERE}:Shout"


def test_a_decorated_class_or_function_is_found_by_its_name() -> None:
    assert adapter("shout")(steps.Shout) is steps.Shout
    assert adapter("upper")(steps.upper) is steps.upper
    assert find("shout") is steps.Shout
    assert find("upper") is find(f"{HERE}:upper")
    assert reference(find("upper")) == f"{HERE}:upper"
    assert {"shout", "upper"} <= set(names())


def test_the_same_adapter_may_be_registered_again_and_another_one_may_not() -> None:
    adapter("shout")(steps.Shout)
    adapter("shout")(steps.Shout)
    with pytest.raises(ConfigError, match="two adapters have one name"):
        adapter("shout")(steps.upper)


@pytest.mark.parametrize("name", ["", "Shout", "a:b", "1st", "a b"])
def test_a_name_that_no_document_could_use_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no name for an adapter"):
        adapter(name)


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[None]:
    folder = tmp_path / "shouting-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        f"[tupletree.adapters]\nloud = {HERE}:Shout\nabsent = shouting_nowhere:Shout\n"
    )
    sys.path.insert(0, str(tmp_path))
    yield
    sys.path.remove(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_an_installed_package_names_adapters_by_entry_points() -> None:
    assert find("loud") is steps.Shout
    assert "loud" in names()
    with pytest.raises(UnknownAdapterError, match="there is no module shouting_nowhere"):
        find("absent")


@pytest.mark.parametrize(
    ("name", "what", "nearest"),
    [
        ("Shuot", "no adapter has this name", "shout"),
        ("SHOUT", "no adapter has this name", "shout"),
        ("zzz", "no adapter has this name", ""),
        (f"{HERE}:Shuot", "has no Shuot", "Shout"),
        (f"{HERE}:uper", "has no uper", "upper"),
        (f"{HERE}:Holder.iner", "Holder has no iner", "inner"),
        (f"{HERE}:Plain", "neither an adapter class nor a function", ""),
        (f"{HERE}:NUMBER", "neither an adapter class nor a function", ""),
        ("tests.routes.adapters.stepz:Shout", "there is no module tests.routes.adapters.stepz", ""),
        ("no_such_package.steps:Shout", "there is no module no_such_package", ""),
        (":Shout", "this is no reference", ""),
        ("a b:Shout", "this is no reference", ""),
        ("../steps:Shout", "this is no reference", ""),
    ],
)
def test_a_name_without_an_adapter_is_refused_with_the_nearest(name: str, what: str, nearest: str) -> None:
    adapter("shout")(steps.Shout)
    with pytest.raises(UnknownAdapterError, match=what) as caught:
        find(name)
    assert caught.value.nearest == nearest
    if nearest:
        assert f"did you mean {nearest}?" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("Incomplete", "it defines process"),
        ("BadConfig", "class Config"),
        ("no_payload", "cannot be an adapter"),
        ("two_payloads", "cannot be an adapter"),
    ],
)
def test_a_class_or_function_that_cannot_be_called_is_refused(name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        find(f"{HERE}:{name}")


def test_a_module_that_fails_to_import_is_named_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_steps_1.py").write_text("raise OSError('no licence')")
    (tmp_path / "broken_steps_2.py").write_text("import no_such_module_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="no licence"):
        find("broken_steps_1:run")
    with pytest.raises(ConfigError, match="no_such_module_at_all") as caught:
        find("broken_steps_2:run")
    assert not isinstance(caught.value, UnknownAdapterError)


def test_a_class_within_a_function_has_no_reference() -> None:
    class Local(steps.Shout):
        pass

    with pytest.raises(ConfigError, match="another process cannot find"):
        reference(Local)


def test_a_function_takes_a_payload_and_its_settings() -> None:
    assert run(payload_of(f"{HERE}:upper", "ab")) == "AB"
    assert run(payload_of(f"{HERE}:upper", "ab", times=2, suffix="!")) == "ABAB!"
    assert run(payload_of(f"{HERE}:needs", "b", folder="a")) == "a/b"
    assert run(payload_of(f"{HERE}:later", 1, add=2)) == 3
    assert run(payload_of(f"{HERE}:Holder.inner", 1)) == [1]
    assert run(payload_of(f"{HERE}:json_parameter", 1, json=False)) is False
    assert run(payload_of(f"{HERE}:anything", 1, a=2)) == {"payload": 1, "a": 2}


def test_a_function_that_asks_for_the_context_gets_it() -> None:
    assert run(payload_of(f"{HERE}:attempt", None)) == 1


def test_a_function_that_returns_none_filters() -> None:
    assert run(called(f"{HERE}:nothing", "ab")) is None
    assert run(called(f"{HERE}:no_pieces", "ab")) is None


def test_what_a_generator_yields_is_emitted() -> None:
    result = run(called(f"{HERE}:pieces", "a b"))
    assert result.message is None
    assert list(result.emitted) == [Emitted("a"), Emitted("b"), Emitted("other", queue="/other")]
    assert pieces_of(run(called(f"{HERE}:later_pieces", 2))) == [0, 1]


@pytest.mark.parametrize(
    ("name", "config", "where"),
    [
        ("upper", {"time": 2}, "time"),
        ("upper", {"times": "many"}, "times"),
        ("needs", {}, "folder"),
        ("Shout", {"mak": "?"}, "mak"),
    ],
)
def test_wrong_settings_are_found_before_anything_runs(name: str, config: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError, match=where):
        find(f"{HERE}:{name}").Config.model_validate(config)


@pytest.mark.parametrize("by", [pickle, cloudpickle])
def test_adapter_classes_and_their_settings_can_be_sent_to_another_process(by: Any) -> None:
    for name, config in [("upper", {"times": 2}), ("anything", {"a": [1]}), ("Shout", {"mark": "?"})]:
        cls = find(f"{HERE}:{name}")
        sent = by.dumps((cls, cls.Config.model_validate(config)))
        assert pickle.loads(sent) == (cls, cls.Config.model_validate(config))
        program = (
            f"import pickle; cls, config = pickle.loads({sent!r}); print(cls.reference, type(config) is cls.Config)"
        )
        if name == "upper":
            done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
            assert done.stdout.split() == [f"{HERE}:{name}", "True"]
