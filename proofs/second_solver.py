"""The second solver: cvc5 reads each obligation as SMT-LIB text, and must also prove it.

The text is that of the formulas as the spec made them. No solver of z3 has rewritten them, so that an error in z3's
rewriting cannot pass both solvers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import cvc5
import z3

NET = 300_000  # milliseconds after which a solver gives up in any case; what ends an answer is its limit of steps
DECLARED = re.compile(r"^\(declare-fun (\|[^|]*\||\S+) ", re.MULTILINE)
QUANTIFIED = re.compile(r"\((?:forall|exists) \(((?:\((?:\|[^|]*\||[^\s|()]+) \w+\) ?)+)\)")
BOUND = re.compile(r"\((\|[^|]*\||[^\s|()]+) \w+\)")


@cache
def version() -> str:
    """The name and the version of the solver."""
    return f"cvc5 {cvc5.__version__} {_word_of(cvc5.Solver(cvc5.TermManager()).getVersion())}"


def _word_of(said: str | bytes) -> str:
    return said if isinstance(said, str) else said.decode()


def options(limit: int) -> dict[str, str]:
    """The options with which a script is checked. ``limit``: after how many of its own steps the solver gives up."""
    return {"rlimit-per": str(limit), "tlimit-per": str(NET)}


def script(assertions: Sequence[Any]) -> str:
    """The assertions as an SMT-LIB script, each as it was made.

    Raises ``TypeError`` where one name is both declared and bound by a quantifier: the script could not say which of
    the two is meant, and two different formulas would have one script.
    """
    text = _printed(assertions)
    bound = {name for group in QUANTIFIED.findall(text) for name in BOUND.findall(group)}
    if both := bound.intersection(DECLARED.findall(text)):
        raise TypeError(f"{min(both)} is both declared and bound by a quantifier: no text tells the two apart")
    return text


def _printed(assertions: Sequence[Any]) -> str:
    context = assertions[0].ctx
    *first, last = (assertion.as_ast() for assertion in assertions)
    array = (z3.Ast * len(first))(*first)
    return str(z3.Z3_benchmark_to_smtlib_string(context.ref(), "", "UFLIA", "unknown", "", len(first), array, last))


def check(smt2: str, limit: int) -> str:
    """``unsat``, ``sat`` or ``unknown`` for an SMT-LIB script of assertions; what it says of a logic and of checks is
    left out. ``limit``: after how many of its own steps cvc5 gives up.
    """
    return _word(_reading(smt2, limit).checkSat())


def certificate(smt2: str, limit: int) -> str | None:
    """The proof that the script is ``unsat``, in the Cooperating Proof Calculus (CPC), which the checker Ethos reads;
    ``None`` if cvc5 finds none in ``limit`` of its own steps.
    """
    wanted = {"produce-proofs": "true", "proof-format-mode": "cpc", "proof-granularity": "dsl-rewrite"}
    solver = _reading(smt2, limit, wanted)
    if _word(solver.checkSat()) != "unsat":
        return None
    return _word_of(solver.proofToString(solver.getProof()[0], cvc5.ProofFormat.CPC))


def _reading(smt2: str, limit: int, more: Mapping[str, str] = MappingProxyType({})) -> cvc5.Solver:
    """A solver that has read the script."""
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("verbosity", "-1")  # else it warns on standard error of names that it renames
    for name, value in {**options(limit), **more}.items():
        solver.setOption(name, value)
    parser = cvc5.InputParser(solver)
    lines = (line for line in smt2.splitlines() if not line.startswith(("(set-logic", "(set-info", "(check-sat")))
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, "\n".join(["(set-logic UFLIA)", *lines]), "obligation")
    symbols = parser.getSymbolManager()
    while not (command := parser.nextCommand()).isNull():
        command.invoke(solver, symbols)
    return solver


def _word(result: cvc5.Result) -> str:
    return "unsat" if result.isUnsat() else "sat" if result.isSat() else "unknown"
