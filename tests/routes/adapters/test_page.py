from __future__ import annotations

from tests.routes.adapters.documents import PAGE, described, with_tables
from tupletree.routes.adapters.registry import BUILT_IN


def test_the_page_describes_every_built_in_adapter_with_all_of_its_settings() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert described(text) == set(BUILT_IN)
    assert with_tables(text) == text, "run: python -m tests.routes.adapters.documents"
