"""The calls within an engine by the syntax trees of its files: whether a chain of them leads to a function from a
message handler or a loop of the server.

Nothing is executed, and types are not known. So what a function may call is told by names, and rather too much than too
little: ``x.f(…)``, ``g(x.f)`` and ``getattr(x, "f")`` may call every function of the package that is named ``f``. A
function that stands in a table, is handed to another function, is given to a decorator, or is kept in an attribute is
named where this happens. ``getattr`` with a name that is made at run time may call every function whose name fits the
constant parts of an f-string; else every method of the own class, or, of another object than ``self``, every function
whose name is a text anywhere in the package. Who names a class may call the methods that Python calls by itself, like
``__len__``, and all its methods where a base of it is not of the package.

So that no chain leads to a function is a safe statement, but for code that is made from texts, that is not Python, or
that another package calls by a name that it composes. That a chain leads there is none: each call of a chain that is by
name alone is marked.
"""

from __future__ import annotations

import ast
import heapq
import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from conformance.driver.entrances import Entrances
from conformance.search.replacing import FunctionPlace

Function = ast.FunctionDef | ast.AsyncFunctionDef
# Decorators that call the function only when it is called. What another decorator is given can be called by anybody.
HARMLESS = frozenset(
    {
        *("property", "staticmethod", "classmethod", "abstractmethod", "cached_property", "cache", "lru_cache"),
        *("contextmanager", "wraps", "overload", "no_grad", "inference_mode", "compile", "override", "jit", "setter"),
    }
)
# Bases that call no method of a class by themselves.
PLAIN = frozenset({"object", "ABC", "Protocol", "Generic", "Enum", "IntEnum", "StrEnum", "Exception", "NamedTuple"})
CONTAINERS = (dict, list, set, str, bytes, tuple, deque)
OFTEN = frozenset(name for kind in CONTAINERS for name in dir(kind)) | {"view", "clone", "to", "copy_", "size", "numel"}
_TEXT = re.compile(r"[A-Za-z_][\w.:]*")
_DUNDER = re.compile(r"__\w+__")
LOOP, HANDLER, START = "loop", "message handler", "start of the server"
# How a function names another one.
NAME, ATTRIBUTE, OWN, TEXT, LIKE, ANY_OWN, ANY = "name", "attribute", "own", "text", "like", "any own", "any"
BUILT = "built"  # a class that is called
HELD = "held"  # an attribute of what has a name, as in ``token_pool.free``: probably of a class like ``TokenPool``
IMPORTED = 40.0  # how far-fetched it is that a function is called which is named where a file is imported
Mention = tuple[str, str]  # how, and the name, or the regular expression of ``LIKE``


@dataclass(frozen=True)
class ChainCall:
    """One call of a chain. ``by_name``: other functions have the name of ``callee``, too, and it is not known whose
    function is called.
    """

    callee: FunctionPlace
    by_name: bool = False


@dataclass(frozen=True)
class CallChain:
    """Calls that lead to a function. ``begins``: what the first function is: a loop, a message handler, or the start of
    the server.
    """

    begins: str
    first: FunctionPlace
    calls: tuple[ChainCall, ...] = ()

    @property
    def guesses(self) -> int:
        """How many calls are by name alone."""
        return sum(call.by_name for call in self.calls)


@dataclass
class SourceFile:
    """What one file defines and names.

    ``functions``: by qualified name what each function names. ``bases``: by class the last names of its bases.
    ``imported``: what an imported name is called where it is defined. ``star``: all names of some module are imported.
    ``top``: what is named outside functions, which runs when the file is imported. ``handed``: functions that are given
    to decorators.
    """

    functions: dict[str, set[Mention]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    top: set[Mention] = field(default_factory=set)
    handed: set[str] = field(default_factory=set)
    star: bool = False


def source_file(text: str) -> SourceFile:
    """Reads a file. One that is no Python defines nothing."""
    found = SourceFile()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return found
    _read(tree.body, "", found)
    return found


def _read(body: Sequence[ast.stmt], above: str, found: SourceFile) -> None:
    for node in body:
        if isinstance(node, Function):
            name = f"{above}{node.name}"
            found.functions.setdefault(name, set()).update(_mentions(node.body, found))
            found.top |= _mentions(_given(node), found)
            if not all(_last_name(one) in HARMLESS for one in node.decorator_list):
                found.handed.add(name)
        elif isinstance(node, ast.ClassDef):
            found.bases[f"{above}{node.name}"] = [_last_name(base) for base in node.bases]
            found.top |= _mentions([*node.decorator_list, *(keyword.value for keyword in node.keywords)], found)
            _read(node.body, f"{above}{node.name}.", found)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            handlers = [line for one in getattr(node, "handlers", []) for line in one.body]
            _read([*inner, *handlers], above, found)
            found.top |= _mentions(
                [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)], found
            )
        elif not _is_all(node):
            found.top |= _mentions([node], found)


def _is_all(node: ast.stmt) -> bool:
    """``__all__ = […]`` only names what the file defines."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _last_name(node: ast.AST) -> str:
    """The last name of ``f``, ``a.f``, ``f(…)`` or ``f[…]``."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _given(node: Function) -> list[ast.expr]:
    """What is computed where a function is defined."""
    return [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]


def _mentions(nodes: Iterable[ast.AST], file: SourceFile) -> set[Mention]:
    """What these pieces of a program name, without annotations and docstrings. ``file`` gets what they import."""
    found: set[Mention] = set()
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.ImportFrom | ast.Import):
            file.star |= any(alias.name == "*" for alias in node.names)
            file.imported |= {a.asname or a.name: a.name.rpartition(".")[2] for a in node.names}
            continue
        if isinstance(node, ast.arg):
            continue
        if isinstance(node, ast.AnnAssign):
            waiting += [node.target, *([] if node.value is None else [node.value])]
            continue
        if isinstance(node, Function):  # a function within a function: its annotations name nothing that is called
            waiting += [*node.body, *_given(node)]
            continue
        if isinstance(node, ast.Name):
            found.add((NAME, node.id))
        elif isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            found.add((OWN if own or _is_super(node.value) else ATTRIBUTE, node.attr))
            if not own and (holder := _last_name(node.value)):
                found.add((HELD, f"{holder}.{node.attr}"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _TEXT.fullmatch(node.value):
            found.add((TEXT, re.split(r"[.:]", node.value.rstrip(".:"))[-1]))
        elif isinstance(node, ast.Call) and _last_name(node.func) in ("getattr", "methodcaller", "attrgetter"):
            found.add(_asked_for(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            found.add((BUILT, _last_name(node.func)))
        waiting += ast.iter_child_nodes(node)
    return found


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _asked_for(call: ast.Call) -> Mention:
    """What ``getattr`` may answer where the name is no constant; a constant is named as a text."""
    asks_object = _last_name(call.func) == "getattr"
    name = call.args[1 if asks_object else 0] if len(call.args) > asks_object else None
    if isinstance(name, ast.Constant):
        return TEXT, str(name.value).rpartition(".")[2]
    if isinstance(name, ast.JoinedStr):
        parts = [re.escape(str(v.value)) if isinstance(v, ast.Constant) else r"\w*" for v in name.values]
        if any(part != r"\w*" for part in parts):
            return LIKE, "".join(parts)
    own = asks_object and bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id == "self"
    return (ANY_OWN if own else ANY), ""


class Beginning(NamedTuple):
    """Where a chain can begin. ``far``: how far-fetched that is."""

    what: str
    far: float = 0.0


class Asked(NamedTuple):
    """What a function names: how, the name, and the file and the class by which it is known, where they count."""

    how: str
    word: str
    file: str
    owner: str


class CallGraph:
    """The calls within the package in the folder ``root``."""

    def __init__(self, root: Path) -> None:
        paths = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py"))}
        self.files = {name: source_file(path.read_text("utf-8-sig", "replace")) for name, path in paths.items()}
        self.named: defaultdict[str, list[FunctionPlace]] = defaultdict(list)  # functions by their last names
        self.classes: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)  # file and name, by last name
        for file, source in self.files.items():
            for name in source.functions:
                self.named[name.rpartition(".")[2]].append(FunctionPlace(file, name))
            for name in source.bases:
                self.classes[name.rpartition(".")[2]].append((file, name))

    @property
    def places(self) -> Iterator[FunctionPlace]:
        """All functions."""
        return (place for several in self.named.values() for place in several)

    def __contains__(self, place: object) -> bool:
        return isinstance(place, FunctionPlace) and place in self.named.get(place.name.rpartition(".")[2], ())

    def chain(self, target: FunctionPlace, entrances: Entrances) -> CallChain | None:
        """The chain of calls to a function with the fewest calls that are by name alone, and of these the shortest;
        ``None`` if none leads there. One that begins with the start of the server is told where there is no other.
        Raises ``LookupError`` where the package has no such function.
        """
        if target not in self:
            raise LookupError(f"{target.file}:{target.name}")
        return self._served(entrances).chain(target) or self._started(entrances).chain(target)

    def _served(self, entrances: Entrances) -> _Ways:
        """What loops and handlers lead to."""
        if (entrances, LOOP) not in self._known:
            self._known[entrances, LOOP] = _Ways(self, self._serving(entrances))
        return self._known[entrances, LOOP]

    def _started(self, entrances: Entrances) -> _Ways:
        """What the start of the server leads to, too, and what is named where a file is imported."""
        if (entrances, START) not in self._known:
            begun = {place: Beginning(START) for pattern in entrances.start for place in self._matching(pattern)}
            for file, source in self.files.items():
                begun |= {FunctionPlace(file, name): Beginning(START, IMPORTED) for name in source.handed}
                named = (answer for asked in self.asked(source.top, file, "") for answer in self.answers(asked))
                begun |= {
                    call.callee: Beginning(START, IMPORTED + far) for call, far in named if call.callee not in begun
                }
            self._known[entrances, START] = _Ways(self, {**begun, **self._serving(entrances)})
        return self._known[entrances, START]

    @cached_property
    def _known(self) -> dict[tuple[Entrances, str], _Ways]:
        return {}

    def _serving(self, entrances: Entrances) -> dict[FunctionPlace, Beginning]:
        served: dict[FunctionPlace, Beginning] = {}
        for pattern in entrances.tables:
            for place in self._matching(pattern):
                served |= {call.callee: Beginning(HANDLER, far) for call, far in self.calls(place)}
        for patterns, what in ((entrances.handlers, HANDLER), (entrances.loops, LOOP)):
            served |= {place: Beginning(what) for pattern in patterns for place in self._matching(pattern)}
        return served

    def _matching(self, pattern: str) -> list[FunctionPlace]:
        return [place for place in self.places if re.fullmatch(pattern, f"{place.file}:{place.name}")]

    def calls(self, place: FunctionPlace) -> Iterator[tuple[ChainCall, float]]:
        """What a function may call, and how far-fetched each call is: 1 for one that cannot be anything else."""
        for asked in self.asked(self.files[place.file].functions[place.name], place.file, place.owner):
            yield from self.answers(asked)

    def asked(self, mentions: Iterable[Mention], file: str, owner: str) -> Iterator[Asked]:
        """What a function of this file and class asks for. Functions that ask for one thing may call the same."""
        for how, word in mentions:
            yield Asked(how, word, file if how == NAME else "", owner if how in (OWN, ANY_OWN) else "")

    def answers(self, asked: Asked) -> Iterator[tuple[ChainCall, float]]:
        """The functions that this may be, and how far-fetched each is."""
        how, word, file, owner = asked
        if how == NAME:
            yield from self._by_name(word, file)
        elif how in (OWN, ATTRIBUTE, TEXT):
            own = self._family_functions(owner, word) if how == OWN else []
            yield from ((ChainCall(place), 1.0) for place in own)
            others = [place for place in self.named.get(word, ()) if place not in own]
            alone = how != TEXT and not own and len(others) == 1 and word not in OFTEN
            far = 3 + 4 * math.log2(len(others) + 1) + 16 * (word in OFTEN) + 8 * (how == TEXT) + 30 * bool(own)
            yield from ((ChainCall(place, not alone), 1.0 if alone else far) for place in others)
            if how != OWN:
                yield from self._of_class(word)
        elif how == BUILT:
            places = [place for place in self.named["__init__"] if place.owner.rpartition(".")[2] == word]
            yield from ((ChainCall(place, len(places) > 1), 2.0) for place in places)
        elif how == HELD:
            holder, _, word = word.rpartition(".")
            looks = holder.replace("_", "").lower()
            owned = self._owned.get(word, ()) if len(looks) > 3 else ()
            yield from ((ChainCall(place, True), 2.0) for place, _, owner in owned if looks in owner)
        elif how == LIKE:
            names = [name for name in self.named if re.fullmatch(word, name)]
            yield from ((ChainCall(place, True), 16.0) for name in names for place in self.named[name])
        elif how == ANY_OWN:
            names = self._family(owner)
            yield from ((ChainCall(place, True), 20.0) for name in names for place in self._of_owner.get(name, ()))
        else:
            yield from ((ChainCall(place, True), 60.0) for name in self._texts for place in self.named.get(name, ()))

    def _by_name(self, word: str, file: str) -> Iterator[tuple[ChainCall, float]]:
        """A plain name is a function or a class of this file, or one that was imported."""
        source = self.files[file]
        if word in source.functions:
            yield ChainCall(FunctionPlace(file, word)), 1.0
        elif word in source.imported or source.star:
            word = source.imported.get(word, word)
            found = [place for place in self.named.get(word, ()) if "." not in place.name]
            yield from ((ChainCall(place, len(found) > 1), 1.0 if len(found) == 1 else 4.0) for place in found)
            yield from self._of_class(word)
        elif word in source.bases:
            yield from self._of_class(word)

    def _of_class(self, word: str) -> list[tuple[ChainCall, float]]:
        """What is called of a class that is named: what Python calls by itself, or a base from another package does."""
        if word not in self.classes:
            return []
        if word not in self._called_of:
            self._called_of[word] = [*self._calls_of_class(word)]
        return self._called_of[word]

    @cached_property
    def _called_of(self) -> dict[str, list[tuple[ChainCall, float]]]:
        return {}

    def _calls_of_class(self, word: str) -> Iterator[tuple[ChainCall, float]]:
        family = self._ancestors(word)
        foreign = any(base not in self.classes and base not in PLAIN for name in family for base in self._bases(name))
        for name in family:
            for file, qualified in self.classes[name]:
                for function in self._methods(file, qualified):
                    own = function.name.rpartition(".")[2]
                    if _DUNDER.fullmatch(own) or foreign:
                        yield ChainCall(function, True), 40.0

    @cached_property
    def _of_owner(self) -> dict[str, list[FunctionPlace]]:
        found: defaultdict[str, list[FunctionPlace]] = defaultdict(list)
        for place in self.places:
            found[place.owner.rpartition(".")[2]].append(place)
        return found

    @cached_property
    def _owned(self) -> dict[str, list[tuple[FunctionPlace, str, str]]]:
        """The methods by their names, each with the name of its class, and with this in small letters."""
        found: dict[str, list[tuple[FunctionPlace, str, str]]] = {}
        for word, places in self.named.items():
            owners = [(place, place.owner.rpartition(".")[2]) for place in places if place.owner]
            found[word] = [(place, owner, owner.lower()) for place, owner in owners]
        return found

    def _methods(self, file: str, name: str) -> list[FunctionPlace]:
        return self._by_owner.get((file, name), [])

    @cached_property
    def _by_owner(self) -> dict[tuple[str, str], list[FunctionPlace]]:
        found: defaultdict[tuple[str, str], list[FunctionPlace]] = defaultdict(list)
        for place in self.places:
            found[place.file, place.owner].append(place)
        return found

    def _bases(self, name: str) -> list[str]:
        return [base for file, qualified in self.classes.get(name, ()) for base in self.files[file].bases[qualified]]

    def _ancestors(self, name: str) -> list[str]:
        """The class and those of its bases that are of the package, by their last names."""
        found = [name]
        for one in found:
            found += [base for base in dict.fromkeys(self._bases(one)) if base in self.classes and base not in found]
        return found

    @cached_property
    def _derived(self) -> dict[str, list[str]]:
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name in self.classes:
            for base in dict.fromkeys(self._bases(name)):
                found[base].append(name)
        return found

    def _family(self, owner: str) -> list[str]:
        """The class, the classes that it is derived from, and those that are derived from one that is or from it: what
        ``self`` can be in a method of it.
        """
        name = owner.rpartition(".")[2]
        if name not in self._families:
            found = [name] if name in self.classes else []
            for one in found:
                found += [derived for derived in self._derived.get(one, ()) if derived not in found]
            self._families[name] = [*dict.fromkeys(base for one in found for base in self._ancestors(one))]
        return self._families[name]

    @cached_property
    def _families(self) -> dict[str, list[str]]:
        return {}

    def _family_functions(self, owner: str, word: str) -> list[FunctionPlace]:
        if word not in self.named:
            return []
        family = self._family(owner)
        return [place for place, name, _ in self._owned.get(word, ()) if name in family]

    @cached_property
    def _texts(self) -> set[str]:
        """The names of functions that are texts somewhere in the package."""
        every = (source.functions.values() for source in self.files.values())
        mentions = (mention for functions in every for several in functions for mention in several)
        tops = (mention for source in self.files.values() for mention in source.top)
        return {word for found in (mentions, tops) for how, word in found if how == TEXT and word in self.named}


class _Ways:
    """The least far-fetched way from functions to all functions to which a way leads."""

    def __init__(self, graph: CallGraph, begin: dict[FunctionPlace, Beginning]) -> None:
        self.begin = begin
        self.before: dict[FunctionPlace, tuple[FunctionPlace, ChainCall] | None] = {}
        self._order = {place: one.far for place, one in begin.items()}
        waiting: list[tuple[float, FunctionPlace, tuple[FunctionPlace, ChainCall] | None]]
        waiting = sorted((one.far, place, None) for place, one in begin.items())
        done: set[Asked] = set()

        def asked_by(place: FunctionPlace) -> Iterator[Asked]:
            return graph.asked(graph.files[place.file].functions[place.name], place.file, place.owner)

        while waiting:
            far, place, by = heapq.heappop(waiting)
            if place in self.before:
                continue
            self.before[place] = by
            fresh = [one for one in asked_by(place) if one not in done]
            done.update(fresh)  # who comes first is the nearest: nobody who asks for it later has a nearer way
            for call, more in (answer for one in fresh for answer in graph.answers(one)):
                if call.callee not in self.before and far + more < self._order.get(call.callee, math.inf):
                    self._order[call.callee] = far + more
                    heapq.heappush(waiting, (far + more, call.callee, (place, call)))

    def chain(self, target: FunctionPlace) -> CallChain | None:
        """The way to a function; ``None`` where none leads there."""
        if target not in self.before:
            return None
        calls: list[ChainCall] = []
        place = target
        while (by := self.before[place]) is not None:
            place, call = by
            calls.append(call)
        return CallChain(self.begin[place].what, place, tuple(reversed(calls)))
