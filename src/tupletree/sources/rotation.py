"""What rotation makes of a name, and where in its folder a file may be that has left its name.

Owns which paths are related by their names alone. It refuses to compare files: callers do.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence

from tupletree.sources.files import siblings, without_compression


class Neighbours:
    """The entries in the folders of files, each looked at once."""

    def __init__(self) -> None:
        self._folders: dict[str, tuple[dict[int, list[str]], list[str], Related]] = {}

    def that_may_be(self, path: str, inode: int, name: str) -> list[str]:
        """Paths in the folder of a file that this may have now: those of its inode, and those that rotation makes.

        The path where it was is among them where its name is another file's, or nobody's: the file was rotated away, or
        the link that is followed leads elsewhere. Where its name is still its own, the source is not to read it any
        more.
        """
        by_inode, _, _ = self._folder_of(path)
        rotated = self.rotated_from(path)
        left_out = {path} if os.path.realpath(name) == path else set()
        return sorted({*by_inode.get(inode, ()), *rotated} - left_out)

    def rotated_from(self, path: str) -> list[str]:
        """Paths beside this one that rotation makes of it."""
        _, paths, related = self._folder_of(path)
        return [paths[place] for place in related.rotated_from(path)]

    def _folder_of(self, path: str) -> tuple[dict[int, list[str]], list[str], Related]:
        folder = os.path.dirname(path)
        if folder not in self._folders:
            entries = [*siblings(path)]
            by_inode: dict[int, list[str]] = defaultdict(list)
            for entry, inode in entries:
                by_inode[inode].append(entry)
            paths = [entry for entry, _ in entries]
            self._folders[folder] = by_inode, paths, Related(paths)
        return self._folders[folder]


class Related:
    """Paths, to be found by those that rotation makes of them or made them of, without comparing each with each.

    Names of data often end with numbers (`part-00001`), so that thousands have one stem.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._at: dict[str, list[int]] = defaultdict(list)
        self._of_plain: dict[str, list[int]] = defaultdict(list)  # by the path without its compression
        self._of_stem: dict[str, list[int]] = defaultdict(list)
        self._packed: dict[str, list[int]] = defaultdict(list)  # those that are compressed, by their stem
        self._unpacked: dict[str, list[int]] = defaultdict(list)
        for place, path in enumerate(paths):
            plain, stem = without_compression(path), _stem(path)
            self._at[path].append(place)
            self._of_plain[plain].append(place)
            self._of_stem[stem].append(place)
            (self._packed if plain != path else self._unpacked)[stem].append(place)

    def originals_of(self, new: str) -> list[int]:
        """Places of the paths of which rotation makes this one, in order."""
        plain, stem = without_compression(new), _stem(new)
        places = {*self._at.get(plain, ()), *self._at.get(stem, ())}
        if plain != new:
            places.update(self._unpacked.get(stem, ()))
        return [place for place in sorted(places) if is_rotated(self._paths[place], new)]

    def rotated_from(self, old: str) -> list[int]:
        """Places of the paths that rotation makes of this one, in order."""
        places = {*self._of_plain.get(old, ()), *self._of_stem.get(old, ())}
        if without_compression(old) == old:
            places.update(self._packed.get(_stem(old), ()))
        return [place for place in sorted(places) if is_rotated(old, self._paths[place])]


_ROTATION = re.compile(r"([._-]\d+)+$")
"""What rotation appends to a name: numbers and dates."""


def _stem(path: str) -> str:
    """What a file and those that rotation makes of it have in common."""
    return _ROTATION.sub("", without_compression(path))


def is_rotated(old: str, new: str) -> bool:
    """Whether rotation makes the one name of the other: by adding a number or a date, by compressing, or both."""
    if old == new or _stem(old) != _stem(new):
        return False
    plain, is_packed = without_compression(new), without_compression(new) != new
    return plain == old or old == _stem(new) or (is_packed and without_compression(old) == old)
