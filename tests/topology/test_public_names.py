"""What `import tupletree` gives, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_the_public_names_are_there() -> None:
    import tupletree

    for name in tupletree.__all__:
        if name != "run":
            assert getattr(tupletree, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tupletree.nothing


def test_importing_the_package_loads_no_runtime() -> None:
    heavy = ("pyspark", "pandas", "pyarrow", "numpy", "asyncio", "threading", "typer", "rich")
    program = f"import sys, tupletree; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
