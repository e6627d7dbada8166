"""Makes harmless edits of a release, one at a time, and checks each copy: nothing new may be reported.

    python tests/harmless.py                          lists the edits
    python tests/harmless.py ENGINE [NAME ...]        checks these edits of the engine, by default all
    python tests/harmless.py --busy 2 ENGINE ...      does so beside two processes that keep a processor busy

Exit code 0 if each check says "nothing new", 1 if one says anything else. ``harmless.json`` was written down before its
first run. Nothing of an engine's source is kept here: an edit names a file, a function and what changes, as in
``tests/reverts``; it is an error if the place is not there exactly once.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reverts.revert import NotRevertable, Place, Span

from conformance.engines.sglang.releases.download import WHEELS as SGLANG
from conformance.engines.vllm.download import WHEELS as VLLM
from slotproof.planted import edit_check

EDITS = Path(__file__).with_suffix(".json")
WHEELS = {wheels.package: wheels for wheels in (SGLANG, VLLM)}


@dataclass(frozen=True)
class Harmless:
    """One entry of ``harmless.json``. ``says``: the edit in one sentence. ``edits``: for each place the file below the
    package, the kind (a function of this file), and its arguments.
    """

    name: str
    engine: str
    release: str
    says: str
    edits: list[dict[str, Any]]

    @property
    def package(self) -> Path:
        """The folder of the release's package."""
        return WHEELS[self.engine].release(self.release) / self.engine


def harmless() -> list[Harmless]:
    """The edits, in the order of the file."""
    return [Harmless(**entry) for entry in json.loads(EDITS.read_text(encoding="utf-8"))]


# The kinds of edits of a function. Each yields the spans that are replaced in its file.


def rename_local(place: Place, old: str, new: str) -> Iterator[Span]:
    """A local variable of the function has another name, which the function did not use."""
    names = [node for node in ast.walk(place.node) if isinstance(node, ast.Name)]
    if new in {node.id for node in names} or not any(node.id == old for node in names):
        raise NotRevertable(f"{old} is no name of the function, or {new} is")
    yield from (Span(place.start(node), place.stop(node), new.encode()) for node in names if node.id == old)


def move_to_the_end_of_its_class(place: Place) -> Iterator[Span]:
    """The method is the last one of its class."""
    first, last = place.lines[place.node.lineno - 1], place.lines[getattr(place.node, "end_lineno", None) or 0]
    classes = [node for node in ast.walk(ast.parse(place.source)) if isinstance(node, ast.ClassDef)]
    (owner,) = (node for node in classes if place.node.lineno in [child.lineno for child in node.body])
    end = place.lines[owner.end_lineno or 0]
    if place.node.decorator_list or end == last:
        raise NotRevertable("the method has a decorator, or is the last one")
    yield Span(first, last)
    yield Span(end, end, b"\n" + place.source[first:last])


def swap_pair(place: Place) -> Iterator[Span]:
    """The two members of the function's only pair have changed places."""
    one, other = place.find(ast.Tuple, lambda node: len(node.elts) == 2).elts
    yield from _swapped(place, one, other)


def swap_statements(place: Place, first: str, second: str) -> Iterator[Span]:
    """Two statements have changed places: those that assign to, or call, ``first`` and ``second``."""
    one, other = (place.find(ast.stmt, partial(_does, name)) for name in (first, second))
    yield from _swapped(place, one, other)


def _does(name: str, node: ast.stmt) -> bool:
    done: ast.expr | None = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        done = node.value.func
    return done is not None and ast.unparse(done) == name


def flip_comparison(place: Place, sign: str) -> Iterator[Span]:
    """The function's only comparison with this sign (its class in ``ast``) has its sides changed: ``a <= b`` is
    ``b >= a``.
    """
    other = {"Lt": b">", "LtE": b">=", "Gt": b"<", "GtE": b"<="}[sign]
    node = place.find(ast.Compare, lambda node: [type(op).__name__ for op in node.ops] == [sign])
    left, right = place.text(node.left), place.text(node.comparators[0])
    yield Span(place.start(node), place.stop(node), right + b" " + other + b" " + left)


def invert_if(place: Place) -> Iterator[Span]:
    """The function's only ``if`` with an ``else`` has its blocks changed, under the negated condition."""
    node = place.find(ast.If, lambda node: node.orelse and not isinstance(node.orelse[0], ast.If))
    yield Span(place.start(node.test), place.stop(node.test), b"not (" + place.text(node.test) + b")")
    blocks = [(place.start(block[0]), place.stop(block[-1])) for block in (node.body, node.orelse)]
    for (start, stop), (first, last) in (blocks, blocks[::-1]):
        yield Span(start, stop, place.source[first:last])


def loop_by_number(place: Place) -> Iterator[Span]:
    """The function's only ``for`` loop counts through a list of what it went through."""
    node = place.find(ast.For, lambda node: not node.orelse)
    indent, inner = b" " * node.col_offset, b" " * node.body[0].col_offset
    taken, over = place.text(node.target), place.text(node.iter)
    colon = place.source.index(b":", place.stop(node.iter))
    lines = [b"every_one = list(" + over + b")", indent + b"for number in range(len(every_one)):"]
    yield Span(place.start(node), colon + 1, b"\n".join([*lines, inner + taken + b" = every_one[number]"]))


def append_to_argument(place: Place, call: str, text: str) -> Iterator[Span]:
    """The only argument of the function's only call of ``call`` has ``text`` behind it."""
    (argument,) = place.call(call).args
    yield Span(place.stop(argument), place.stop(argument), text.encode())


def count_from_zero(place: Place, field: str) -> Iterator[Span]:
    """At its end the function sets a new field to 0."""
    last = place.node.body[-1]
    end = place.lines[last.end_lineno]
    yield Span(end, end, b" " * last.col_offset + f"self.{field} = 0\n".encode())


def count_a_call(place: Place, field: str) -> Iterator[Span]:
    """At its beginning the function adds 1 to the field."""
    documented = ast.get_docstring(place.node) is not None
    first = place.node.body[documented]
    start = place.lines[first.lineno - 1]
    yield Span(start, start, b" " * first.col_offset + f"self.{field} += 1\n".encode())


def _swapped(place: Place, one: ast.AST, other: ast.AST) -> Iterator[Span]:
    yield Span(place.start(one), place.stop(one), place.text(other))
    yield Span(place.start(other), place.stop(other), place.text(one))


KINDS: dict[str, Callable[..., Iterator[Span]]] = {
    kind.__name__: kind
    for kind in (
        *(rename_local, move_to_the_end_of_its_class, swap_pair, swap_statements, flip_comparison, invert_if),
        *(loop_by_number, append_to_argument, count_from_zero, count_a_call),
    )
}


def edited(source: bytes, edit: dict[str, Any]) -> bytes:
    """The text of a file after one edit. Raises ``NotRevertable`` if its place is not there, or if it changes
    nothing.
    """
    options = {name: value for name, value in edit.items() if name not in ("file", "function", "kind")}
    try:
        if edit["kind"] == "rename_word":  # of every function of the file
            text = re.sub(rf"\b{options['old']}\b".encode(), options["new"].encode(), source)
        else:
            text = source
            for span in sorted(KINDS[edit["kind"]](Place(source, edit["function"]), **options), reverse=True):
                text = text[: span.start] + span.new + text[span.stop :]
        if ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)):
            raise NotRevertable("changes nothing")
    except NotRevertable as error:
        raise NotRevertable(f"{edit['file']}: {edit.get('function', '')}: {edit['kind']} {options}: {error}") from None
    return text


def texts(one: Harmless) -> dict[str, bytes]:
    """The new texts of the files that an edit changes, by their place below the package."""
    found: dict[str, bytes] = {}
    for edit in one.edits:
        file = edit["file"]
        found[file] = edited(found.get(file) or (one.package / file).read_bytes(), edit)
    return found


def checked(one: Harmless) -> str:
    """What a check of the edit says: ``nothing new``, or what is wrong with that."""
    with edit_check.edited(one.package, texts(one)) as source:
        said = edit_check.report_of(one.engine, one.release, source)
    if "report" not in said:
        return str(said["error"])
    report = said["report"]
    rows = [row for name in ("new", "worse") for row in report[name]]
    told = "".join(f"; {row['severity']} {row['stem']}: {row['law']}: {row['detail']}" for row in rows)
    steps = {result["stem"]: result["steps"] for result in report["results"]}
    return f"{report['reason']}{told} ({report['seconds']} s, operations: {steps})"


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Runs so many processes beside the block that do nothing but keep a processor busy."""
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass


def main(arguments: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("engine", nargs="?", choices=sorted(WHEELS))
    parser.add_argument("name", nargs="*")
    asked = parser.parse_args(arguments)
    of_engine = [one for one in harmless() if asked.engine in (None, one.engine)]
    if unknown := {*asked.name} - {one.name for one in of_engine}:
        parser.error(f"no such edit: {', '.join(sorted(unknown))}")
    chosen = [one for one in of_engine if not asked.name or one.name in asked.name]
    if asked.engine is None:
        print("\n".join(f"{one.engine} {one.release} {one.name}: {one.says}" for one in chosen))
        return 0
    wrong = 0
    with busy(asked.busy):
        for one in chosen:
            said = checked(one)
            wrong += not said.startswith("nothing new (")
            print(f"{one.engine} {one.release} {one.name}: {said}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} harmless edits have nothing new, beside {asked.busy} busy processes")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
