"""The folder of a campaign: everything that its trials have found and reached, so that it can go on after any end.

Every file is written under another name, brought to the disk, and renamed: a reader sees the old file or the new one.
All that must agree is in one file, ``state.json``, which is written after each finished trial. The traces beside it are
named by what they contain and are written before it, so a file that is left over by a campaign that was killed is no
harm.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.search.campaign import coverage
from conformance.search.campaign.coverage import Item
from conformance.search.hunt import SHAPES

SCHEMA = 1
STATE, LOCK = "state.json", "lock"
MOST_COVERING = 200  # covering runs that are kept of each stem
DISTINCT = (
    "stem",
    "law",
    "kind",
    "severity",
)  # what makes a finding distinct, see ``conformance.search.campaign.trial.key_of``


def replace_text(path: Path, text: str) -> None:
    """Writes a file so that it is whole also where this process or the machine ends in the middle."""
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


@dataclass
class Looked:
    """How hard the trials of one stem have looked, and what they have reached.

    ``counts``: how often each item of coverage was met. ``covering``: the files of the runs that reached something new.
    ``ran``: what of the engine ran (``conformance.search.ran``). ``claimed``: the transitions that the engine claims
    (``conformance.stems.claims``), ``None`` before a trial has asked.
    """

    trials: int = 0
    runs: int = 0
    steps: int = 0
    counts: Counter[Item] = field(default_factory=Counter)
    covering: list[str] = field(default_factory=list)
    ran: dict[str, list[str]] = field(default_factory=dict)
    claimed: list[str] | None = None

    def as_json(self) -> Json:
        """The stem as plain data."""
        return {**vars(self), "counts": coverage.rows(self.counts)}

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """The stem that ``as_json`` made plain."""
        return cls(**{**data, "counts": coverage.from_rows(data["counts"])})


class Store:
    """The state of a campaign in its folder. Only the process that has the lock of the folder may hold one.

    ``subject``: the engine that is driven, as plain data. ``seed``: from which the seed of each trial is made.
    ``done``: the numbers of the trials that have ended. ``findings``: rows as in the report of ``slotproof check``,
    each with ``times``, ``trial``, ``seed``, ``shapes`` (its traces: the shortest for each operation that ends one) and
    ``gone`` (its traces no longer show it). ``lost``: trials that ended without a result, and why. ``seconds``: the
    time that all trials together took.
    """

    def __init__(self, folder: Path, subject: Json, seed: int) -> None:
        self.folder, self.subject, self.seed = folder, subject, seed
        self.done: set[int] = set()
        self.stems: dict[str, Looked] = {}
        self.findings: list[Json] = []
        self.lost: list[Json] = []
        self.seconds = 0.0
        self._lock = _locked(folder)

    @classmethod
    def open(cls, folder: Path, subject: Json, seed: int | None, fresh: int) -> Self:
        """The campaign in the folder, or a new one. ``seed``: as the user gave it; ``fresh``: for a new campaign where
        the user gave none.

        Raises ``UsageError`` if the folder has the campaign of another engine or of another seed, if another process
        works in it, or if its state is of another version.
        """
        made = cls(folder, subject, fresh if seed is None else seed)
        path = folder / STATE
        if not path.exists():
            made.save()
            return made
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            made.close()
            raise UsageError(f"-o {folder}: its campaign is of version {data['schema']}, this Slotproof reads {SCHEMA}")
        for name, value in subject.items():
            if data["subject"][name] != value:
                made.close()
                was = data["subject"][name]
                raise UsageError(
                    f"-o {folder}: its campaign has the {name} {was!r}, not {value!r}; name another folder"
                )
        if seed is not None and seed != data["seed"]:
            made.close()
            raise UsageError(f"--seed {seed}: the campaign in {folder} has the seed {data['seed']}; leave --seed out")
        made._read(data)
        return made

    def close(self) -> None:
        """Lets other processes use the folder."""
        self._lock.close()

    def _read(self, data: Json) -> None:
        self.seed, self.findings, self.lost, self.seconds = (
            data[name] for name in ("seed", "findings", "lost", "seconds")
        )
        self.done = {*range(data["done"]["below"]), *data["done"]["also"]}
        self.stems = {name: Looked.from_json(one) for name, one in data["stems"].items()}

    def as_json(self) -> Json:
        """The state as plain data."""
        below = next(n for n in range(len(self.done) + 1) if n not in self.done)
        return {
            **{"schema": SCHEMA, "subject": self.subject, "seed": self.seed},
            "done": {"below": below, "also": sorted(n for n in self.done if n > below)},
            "stems": {name: one.as_json() for name, one in self.stems.items()},
            **{"findings": self.findings, "lost": self.lost, "seconds": round(self.seconds, 1)},
        }

    def save(self) -> None:
        """Writes the state."""
        replace_text(self.folder / STATE, json.dumps(self.as_json()))

    # Trials.

    def seed_of(self, number: int) -> int:
        """The seed of a trial: no two trials of a campaign have one."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{number}".encode()).digest()[:6], "big")

    def add(self, asked: Json, result: Json) -> list[Json]:
        """Adds a finished trial, and writes the state. Returns the findings that are new."""
        stem = self.stems.setdefault(asked["stem"], Looked())
        self.done.add(asked["number"])
        stem.trials += 1
        stem.runs += result["runs"]
        stem.steps += result["steps"]
        self.seconds += result["seconds"]
        stem.ran |= result["ran"]
        if result["claimed"] is not None:
            stem.claimed = sorted({*(stem.claimed or []), *result["claimed"]})
        found = coverage.from_rows(result["coverage"])
        self._keep_covering(asked["stem"], stem, result["covering"])
        stem.counts.update(found)
        if result["lost"]:
            self.lost.append({"trial": asked["number"], "stem": asked["stem"], "seed": asked["seed"], **result["lost"]})
        self._compare_with_replays(dict(result["replayed"]))
        for key, times in result["again"]:
            known = self._known({**dict(zip(DISTINCT[1:], key, strict=True)), "stem": asked["stem"]})
            if known is not None:
                known["times"], known["gone"] = known["times"] + times, False
        new = [row for row in result["findings"] if self._add_finding(row, asked)]
        self.save()
        return new

    def to_replay(self, stem: str) -> list[tuple[str, Json]]:
        """The traces of the findings on a stem, each with its file."""
        known = [finding for finding in self.findings if finding["stem"] == stem]
        return [(shape["file"], shape["trace"]) for finding in known for shape in finding["shapes"]]

    def _compare_with_replays(self, shown: dict[str, list[list[str]]]) -> None:
        """Findings of which no trace shows them any more are gone. ``shown``: for the file of each trace that was
        replayed, the keys of what it shows.
        """
        for finding in self.findings:
            keys = [shown[shape["file"]] for shape in finding["shapes"] if shape["file"] in shown]
            if keys:
                own = [finding[name] for name in DISTINCT[1:]]
                finding["gone"] = not any(own in each for each in keys)

    def _keep_covering(self, name: str, stem: Looked, runs: Iterable[Json]) -> None:
        """Keeps the runs that reach an item which no kept run reaches."""
        reached = {*stem.counts}
        for run in runs:
            new = {tuple(item) for item in run["items"]} - reached
            if new and len(stem.covering) < MOST_COVERING:
                stem.covering.append(self._trace("covering", name, run["trace"]))
            reached |= new

    def _known(self, row: Json) -> Json | None:
        """The finding that is not distinct from this one."""
        return next((f for f in self.findings if all(f[name] == row[name] for name in DISTINCT)), None)

    def _add_finding(self, row: Json, asked: Json) -> bool:
        """Adds a finding, or counts it where it is known; the shortest trace comes first. Returns whether it is new."""
        shape = {"file": self._trace("findings", row["law"], row["trace"]), "trace": row["trace"]}
        known = self._known(row)
        if known is None:
            place = {"trial": asked["number"], "seed": asked["seed"]}
            self.findings.append({**row, **place, "shapes": [shape], "gone": False})
            return True
        known["times"], known["gone"] = known["times"] + row["times"], False
        if len(row["trace"]["steps"]) < len(known["trace"]["steps"]):
            times, shapes = known["times"], known["shapes"]
            known |= {**row, "times": times, "shapes": shapes, "trial": asked["number"], "seed": asked["seed"]}
        shapes = {s["trace"]["steps"][-1]["op"]: s for s in sorted([*known["shapes"], shape], key=_long, reverse=True)}
        known["shapes"] = sorted(shapes.values(), key=_long)[:SHAPES]
        return False

    def _trace(self, kind: str, name: str, trace: Json) -> str:
        """Writes a trace that ``slotproof replay`` reads. Returns its path in the folder."""
        text = json.dumps(trace)
        file = f"{kind}/{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            replace_text(path, text)
        return file

    def covering(self, stem: str) -> list[Json]:
        """The runs that reached something new, as plain data."""
        files = self.stems[stem].covering if stem in self.stems else []
        return [json.loads((self.folder / file).read_text(encoding="utf-8")) for file in files]


def _long(shape: Json) -> int:
    return len(shape["trace"]["steps"])


def _locked(folder: Path) -> Any:
    """The open lock of the folder. It is free again when this process ends, in whatever way."""
    file = (folder / LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UsageError(f"-o {folder}: another campaign works in this folder") from None
    return file
