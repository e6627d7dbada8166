"""What a person has said of edits, one by one: a TOML file with an array of tables, an entry for each edit."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json


class ReviewedEdits(NamedTuple):
    """What such a file has. ``table``: the name of the array. ``named``: the keys that name an edit. ``key``: the key
    that says which of the ``kinds`` the edit is of. Each entry has a ``reason``, too. ``empty``: the keys whose text
    may be empty.
    """

    table: str
    named: Sequence[str]
    key: str
    kinds: Sequence[str]
    empty: Sequence[str] = ()

    def read(self, file: Path) -> dict[tuple[str, ...], Json]:
        """The entries, by what names their edits; none where there is no file. Raises ``UsageError`` for an entry that
        is not as it must be.
        """
        entries = tomllib.loads(file.read_text("utf-8")).get(self.table, []) if file.exists() else []
        for entry in entries:
            self._must_be_whole(file, entry)
        return {tuple(entry[name] for name in self.named): entry for entry in entries}

    def _must_be_whole(self, file: Path, entry: Json) -> None:
        needed = (*self.named, self.key, "reason")
        missing = [name for name in needed if name not in entry or not (entry[name] or name in self.empty)]
        if missing or entry[self.key] not in self.kinds:
            kinds = f"{', '.join(self.kinds[:-1])} or {self.kinds[-1]}"
            names = f"{', '.join(self.named)}, {self.key} ({kinds}) and reason"
            lacks = f"lacks {', '.join(missing)}" if missing else f"has another {self.key}"
            raise UsageError(f"{file.name}: each {self.table} needs {names}; one {lacks}: {entry}")
