"""The documents of the example: what Python's own documentation says of its topics, as files, and a damaged one."""

from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped, unused-ignore]  # typed in some versions

DAMAGED = "damaged.txt"


def make_documents(folder: Path) -> None:
    """Write the topics as files, `lists.txt` and so on, and a file that is no text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in topics.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    (folder / DAMAGED).write_bytes(b"The last words were \xff\xfe\x00")
