"""From TARGET on the command line to a topology: find the module, import it under a name that workers can use too.

Owns the syntax of TARGET, the import, and the text of each error. It neither checks nor runs the topology.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import keyword
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from tupletree.cli.parameters import bind_parameters
from tupletree.errors import ConfigError, TupletreeError, did_you_mean, one_of
from tupletree.topology.model import TargetRef

if TYPE_CHECKING:
    from tupletree.topology.builder import Topology

DEFAULT_NAME = "topology"
_FILE = re.compile(r"(?P<place>.+\.py)(?::(?P<name>[^:]*))?")
_MODULE = re.compile(r"(?P<place>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::(?P<name>[^:]*))?")


def load_target(target: str, settings: Sequence[str] = ()) -> tuple[Topology, TargetRef]:
    """Import what TARGET names and return its topology.

    TARGET is `file.py[:name]` or `package.module[:name]`; the name (default `topology`) is a Topology or a function
    that returns one. A file is imported as a module named by its stem, with its folder first on `sys.path`, so that
    its classes have the same names here and on workers; a module is looked for in the current folder first.

    Args:
        target: as typed.
        settings: `name=value` texts for the function's parameters.

    Raises:
        ConfigError: the target, its name or the settings are wrong, or importing or calling it raised.
        TopologyError: what the topology's own code raised, unchanged.
    """
    if target.endswith((".yaml", ".yml")):
        raise ConfigError(
            "this is a pipeline of routes, and no topology",
            got=target,
            expected="file.py[:name] or package.module[:name]",
            next_step=f"tupletree routes run {target}; `tupletree routes` has validate, graph and test, too",
        )
    if matched := _FILE.fullmatch(target):
        module, folder = _import_file(Path(matched["place"]))
    elif matched := _MODULE.fullmatch(target):
        module, folder = _import_module(matched["place"])
    else:
        raise ConfigError(
            "this is not a target",
            got=target,
            expected="file.py[:name] or package.module[:name]",
            next_step=f"{target} is a folder: name a file in it" if Path(target).is_dir() else "",
        )
    name = matched["name"] or DEFAULT_NAME
    topology, parameters = _topology_of(module, name, settings, folder)
    return topology, TargetRef(module.__name__, name, str(folder), parameters)


def _import_file(file: Path) -> tuple[ModuleType, Path]:
    path = file.expanduser().resolve()
    if not path.is_file():
        raise ConfigError("the target's file does not exist", where=str(file), expected="a Python file")
    check_module_name(path.stem, path)
    return _import(path.stem, path.parent, hint=_as_module(path)), path.parent


def _as_module(path: Path) -> str:
    """What to type instead for a file that is part of a package: its module, as seen from the current folder."""
    try:
        parts = path.relative_to(Path.cwd()).with_suffix("").parts
    except ValueError:
        return ""
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        return ""
    return f"if it is part of a package, name it as a module: {'.'.join(parts)}"


def check_module_name(name: str, path: Path) -> None:
    """Make sure that the file can be imported under its stem, here and on workers, without hiding another module.

    Raises:
        ConfigError: the name is no identifier, or belongs to another module.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(
            "the file's name cannot be a module's name",
            where=str(path),
            got=name,
            expected="letters, digits and underscores, as in word_count.py",
            next_step="choose another name",
        )
    other = _spec_of(name)
    # A namespace package (only a folder) has no origin, and the file is found before it anyway.
    if name in sys.stdlib_module_names or (
        other is not None and other.origin is not None and Path(other.origin).resolve() != path
    ):
        raise ConfigError(
            f"the file's name hides the module {name!r}, which other code may import",
            where=str(path),
            got=getattr(other, "origin", None) or "a module of the standard library",
            expected="a name that no other module has",
            next_step="choose another name",
        )


def _import_module(name: str) -> tuple[ModuleType, Path]:
    module = _import(name, Path.cwd())
    origin = module.__file__
    if origin is None:
        raise ConfigError(
            "this is a folder without Python code of its own",
            where=name,
            expected="a module",
            next_step=f"name a module in it, as in {name}.topology",
        )
    # The folder that holds the outermost package is what a worker needs on its path.
    depth = name.count(".") + (Path(origin).name == "__init__.py")
    return module, Path(origin).resolve().parents[depth]


def _spec_of(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ValueError, ImportError):  # a module without a spec, such as __main__
        return None


def _import(name: str, folder: Path, *, hint: str = "") -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except TupletreeError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name!r}",
                got=name,
                expected="file.py[:name] or package.module[:name]",
                next_step=f"run it from the folder that holds it (now: {folder}), or install it",
            ) from error
        lacks_package = isinstance(error, ImportError) and (error.name is None or _is_here(error.name))
        _blame("importing the target failed", error, folder, hint if lacks_package else "")


def _is_here(name: str) -> bool:
    """Whether a module that was not found, or what holds it, lies in the current folder."""
    first = name.partition(".")[0]
    return Path(first).is_dir() or Path(f"{first}.py").is_file()


def _topology_of(
    module: ModuleType, name: str, settings: Sequence[str], folder: Path
) -> tuple[Topology, dict[str, Any]]:
    from tupletree.topology.builder import Topology

    found = getattr(module, name, None)
    where = f"{module.__file__}:{name}"
    if found is None:
        fitting = [other for other, value in vars(module).items() if _may_be_topology(value, module)]
        raise ConfigError(
            f"the module has nothing named {name!r}",
            where=str(module.__file__),
            expected="a Topology, or a function that returns one",
            next_step=did_you_mean(name, fitting) or f"name it after a colon; there are: {one_of(fitting)}",
        )
    if isinstance(found, Topology):
        if settings:
            raise ConfigError(
                "--set binds the parameters of a function, and this is a Topology",
                where=where,
                got=" ".join(settings),
                next_step="build the topology in a function with parameters",
            )
        return found, {}
    if not callable(found):
        raise ConfigError(
            "this is not a topology",
            where=where,
            got=_kind(found),
            expected="a Topology, or a function that returns one",
        )
    parameters = bind_parameters(found, settings, where=where)
    return _call(found, parameters, where, folder), parameters


def _may_be_topology(value: object, module: ModuleType) -> bool:
    """Whether it may be a target: a topology, or a function of this module that may return one, by its annotation."""
    from tupletree.topology.builder import Topology

    if isinstance(value, Topology):
        return True
    if not inspect.isfunction(value) or value.__module__ != module.__name__ or value.__name__.startswith("_"):
        return False
    returned = value.__annotations__.get("return", Topology)
    return returned is Topology or (isinstance(returned, str) and returned.rpartition(".")[2] == "Topology")


def _call(factory: Callable[..., Any], parameters: dict[str, Any], where: str, folder: Path) -> Topology:
    from tupletree.topology.builder import Topology

    try:
        built = factory(**parameters)
    except TupletreeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is reported as an error of that code
        _blame("building the topology failed", error, folder)
    if not isinstance(built, Topology):
        raise ConfigError("the function returned no topology", where=where, got=_kind(built), expected="a Topology")
    return built


def _kind(value: object) -> str:
    return "None" if value is None else f"{value!r:.100} of type {type(value).__name__}"


def _blame(what: str, error: BaseException, folder: Path, hint: str = "") -> NoReturn:
    """Raise a ConfigError that shows the innermost line of the user's own code."""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        # A virtual environment is often in the project's folder.
        own = [
            frame
            for frame in frames
            if frame.filename.startswith(str(folder)) and "site-packages" not in frame.filename
        ]
        where = f"{own[-1].filename}:{own[-1].lineno}" if own else ""
    raise ConfigError(
        what,
        where=where,
        got=f"{type(error).__name__}: {error}",
        next_step=hint or "fix that line; --debug shows the whole traceback",
    ) from error
