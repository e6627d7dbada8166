"""The kinds of trees that an engine declares are those of its configurations; the core names none."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from conformance.driver.clock import Clock
from conformance.driver.exception_origin import StandIn
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json, Unsupported
from conformance.engines import registry
from conformance.engines.registry import Loaded, SimplePlugin, every_kind, known_kinds
from conformance.search import judge
from conformance.search.campaign import trial
from conformance.search.check import Search, draw
from conformance.stems.kinds import LOCKED, STATEFUL, Kinds, together
from conformance.stems.launches import MODEL, SESSIONS, LaunchChoice, Launches, configuration, pair
from conformance.stems.machine import Sink
from conformance.stems.stem_registry import STEMS
from conformance.traces import trace_files, trace_schema
from conformance.traces.outcome import Outcome

FULL, BOTH, STATES = ("full",), ("full", "swa"), ("full", "mamba")
MINE = Kinds(
    locked=(("oak", FULL), ("ash", BOTH)), served=(("oak", FULL), ("elm", FULL), ("ash", BOTH)), stateful=("yew",)
)
WITH_TREES = ("lock_ref", "session_trim", "mamba_slots", "cache")
ROOT = Path(__file__).resolve().parents[1]


def kind_of(config: Json) -> str:
    """The tree of a configuration; empty for a model whose layers all have a window, which has one kind of tree."""
    return str(config.get("kind", config.get("tree", "")))


class Refusing:
    """A maker that refuses each configuration and keeps it."""

    def __init__(self) -> None:
        self.configs: list[Json] = []

    def __call__(self, config: Json) -> Any:
        self.configs.append(config)
        raise Unsupported("its configuration is wanted, and no engine")

    @property
    def kinds(self) -> set[str]:
        """The kinds of trees that were asked for."""
        return {kind_of(config) for config in self.configs} - {""}


def drawn(stem: str, kinds: Kinds | None) -> Refusing:
    made = Refusing()
    draw(stem, made, Sink(), Search(30, kinds=kinds))
    return made


@pytest.mark.parametrize(
    ("stem", "kinds"),
    [("lock_ref", {"oak", "ash"}), ("session_trim", {"oak", "elm", "ash"}), ("mamba_slots", {"yew"})],
)
def test_the_trees_that_an_engine_declares_are_drawn_and_no_others(stem: str, kinds: set[str]) -> None:
    made = drawn(stem, MINE)
    assert made.kinds == kinds
    known = {*MINE.locked, *MINE.served}
    parts = [
        (kind_of(c), tuple(c.get("components", BOTH))) for c in made.configs if kind_of(c) and stem != "mamba_slots"
    ]
    assert {*parts} <= known, "each kind has the components that it was declared with"


def test_an_engine_is_not_asked_for_a_tree_of_parts_that_it_declares_none_for() -> None:
    made = drawn("cache", MINE)
    assert made.kinds == {"oak", "elm", "ash"}
    assert ["full", "mamba"] not in [config["components"] for config in made.configs]
    assert ["full", "mamba"] in [
        c["components"] for c in drawn("cache", together([MINE, Kinds(served=(("fir", STATES),))])).configs
    ]


@pytest.mark.parametrize("stem", WITH_TREES)
def test_an_engine_that_declares_none_is_asked_for_each(stem: str) -> None:
    trees = every_kind()
    wanted = {*trees.names({"lock_ref": "locked", "mamba_slots": "stateful"}.get(stem, "served"))}
    if stem == "session_trim":  # it has no states
        wanted = {kind for kind, parts in trees.served if "mamba" not in parts}
    assert drawn(stem, None).kinds == wanted


@pytest.mark.parametrize("stem", WITH_TREES)
def test_the_configurations_that_are_tried_have_the_trees_of_the_engine(stem: str) -> None:
    kinds = {kind_of(config) for config in STEMS[stem].probes(MINE)} - {""}
    assert kinds
    assert kinds <= {*MINE.names("locked"), *MINE.names("served"), *MINE.names("stateful")}
    assert not {kind_of(config) for config in STEMS[stem].probes(Kinds())} - {""}


def test_every_search_asks_for_the_trees_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "Connection", lambda *_: nullcontext(StandIn(outcome=lambda _: Outcome())))
    monkeypatch.setattr(trace_files, "every", lambda: [])
    more: Json = {"strict": True, "listed": None, "engine": "toy", "again": [], "roots": [], "base": None}
    more |= {"subject": None, "replay": [], "steer": "", "known": [], "reached": [], "kept": [], "claims": True}
    asked: Json = {"stem": "lock_ref", "examples": 9, "seconds": None, "seed": 1, **more}
    for search in (alone, judge.beside, trial.trial):
        make = Refusing()
        loaded = SimplePlugin("mine", {"lock_ref": make}, kinds=MINE).load(None, None, "cpu")
        search(loaded, asked, lambda *_: None)
        assert make.kinds == {"oak", "ash"}


def alone(loaded: Loaded, asked: Json, progress: judge.Progress) -> None:
    """The search of ``judge.alone``, and what the engine claims."""
    one = judge.Alone(loaded, asked, progress, Clock(None))
    one.new()
    assert one.done.effort.claims == set()


def test_as_many_numbers_are_drawn_for_a_tree_as_an_engine_declares() -> None:
    declared = [getattr(registry.plugin(name), "kinds", None) or Kinds() for name in registry.names()]
    assert max(len(trees.locked) for trees in declared) == LOCKED
    assert max(len(trees.stateful) for trees in declared) == STATEFUL


def test_a_trace_names_a_tree_that_an_engine_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"page_size": 1, "size": 6, "size_swa": 6, "size_mamba": 2, "window": 2, "components": ["full"]}
    trace: Json = {"stem": "lock_ref", "steps": [{"op": "match", "tokens": [1]}]}
    for kind in known_kinds().names("locked"):
        trace_schema.check({**trace, "config": {**config, "kind": kind}})
    with pytest.raises(UsageError, match=r"config\.kind: expected one of .*, found \"oak\""):
        trace_schema.check({**trace, "config": {**config, "kind": "oak"}})
    monkeypatch.setattr(registry, "plugins", lambda: iter([SimplePlugin("mine", {}, kinds=MINE)]))
    known_kinds.cache_clear()
    try:
        trace_schema.check({**trace, "config": {**config, "kind": "oak"}})
    finally:
        known_kinds.cache_clear()


def named(folder: Path, kinds: set[str]) -> list[str]:
    """Each place below a folder where code names one of these kinds of trees."""
    return [
        f"{path.name}:{node.lineno}"
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in kinds
    ]


@pytest.mark.parametrize("room", ["driver", "stems", "traces", "telling", "search", "planted"])
def test_the_core_names_no_kind_of_tree_and_no_launch_flag(room: str, tmp_path: Path) -> None:
    declared = every_kind()
    kinds = {name for field in ("locked", "served", "stateful") for name in declared.names(field)}
    choices = [choice for each in declared.launches.every.values() for choice in each]
    kinds |= {flag for choice in choices for flag in choice.flags if flag.startswith("--")}
    kinds |= {variable for choice in choices for variable, _ in choice.environment}
    assert {"--page-size", "SWA_EVICTION_INTERVAL"} <= kinds
    assert named(ROOT / "conformance" / room, kinds) == []
    (tmp_path / "one.py").write_text(f"x = 1\ny = ('{min(kinds)}', 'oak')\n")
    assert named(tmp_path, kinds) == ["one.py:2"]


TWO = Launches(
    models=(LaunchChoice("small"), LaunchChoice("odd")),
    sessions=(LaunchChoice("none"), LaunchChoice("one", ("--sessions",), sessions=1)),
    options=(("pages", (LaunchChoice("of 1", ("--page", "1")), LaunchChoice("of 4", ("--page", "4")))),),
    never=frozenset({pair(MODEL, "odd", "pages", "of 4")}),
)


def test_a_server_is_chosen_option_by_option_and_a_refused_pair_is_not() -> None:
    """Of a pair that the engine refuses, the option that stands later becomes plain."""
    plain = {"model": "small", "flags": ["--page", "1"], "sessions": 0}
    assert configuration(TWO.chosen({})) == plain
    both = configuration(TWO.chosen({SESSIONS: 1, "pages": 1}))
    assert both == {"model": "small", "flags": ["--sessions", "--page", "4"], "sessions": 1}
    assert configuration(TWO.chosen({MODEL: 1, "pages": 1})) == plain | {"model": "odd"}


def test_a_pair_in_which_a_known_difference_is_met_is_avoided_where_it_is_excluded() -> None:
    known = TWO._replace(never=frozenset(), avoided={"one.known": frozenset({pair(MODEL, "odd", "pages", "of 4")})})
    asked = {MODEL: 1, "pages": 1}
    assert known.chosen(asked)["pages"].name == known.chosen(asked, ["another.known"])["pages"].name == "of 4"
    assert known.chosen(asked, ["one.known"])["pages"].name == "of 1"


def test_a_known_difference_may_need_more_than_two_choices() -> None:
    needed = frozenset({(MODEL, "odd"), (SESSIONS, "one"), ("pages", "of 4")})
    known = TWO._replace(never=frozenset(), avoided={"one.known": frozenset({needed})})
    for model, sessions, left in ((1, 1, "of 1"), (1, 0, "of 4"), (0, 1, "of 4")):
        chosen = known.chosen({MODEL: model, SESSIONS: sessions, "pages": 1}, ["one.known"])
        assert (chosen[SESSIONS].sessions, chosen["pages"].name) == (sessions, left)


def test_a_server_of_each_model_is_tried_with_each_choice_of_sessions() -> None:
    tried = [configuration(chosen) for chosen in TWO.probes()]
    assert [(one["model"], one["sessions"]) for one in tried] == [("small", 0), ("small", 1), ("odd", 0), ("odd", 1)]
    alone = TWO._replace(never=frozenset({pair(MODEL, "odd", SESSIONS, "one")}))
    assert [(c[MODEL].name, c[SESSIONS].name) for c in alone.probes()][-1] == ("odd", "none")


def test_servers_that_an_engine_declares_are_drawn() -> None:
    assert {config["model"] for config in drawn("server", Kinds(launches=TWO)).configs} == {"small", "odd"}
    assert drawn("server", Kinds()).configs == []


def test_what_changed_a_drawn_server_is_told() -> None:
    one, other = (pair(MODEL, "odd", "pages", "of 4"), pair(MODEL, "odd", SESSIONS, "one"))
    known = TWO._replace(never=frozenset(), avoided={"one.known": frozenset({one}), "other.known": frozenset({other})})
    both = ["one.known", "other.known"]
    assert known.changed_by({MODEL: 1, "pages": 1, SESSIONS: 1}, both) == both
    assert known.changed_by({MODEL: 1, "pages": 1}, both) == ["one.known"]
    assert known.changed_by({MODEL: 0, "pages": 1, SESSIONS: 1}, both) == []
