"""The second solver: cvc5 reads each obligation as SMT-LIB text, and must also prove it.

The text is that of the formulas as the spec made them. No solver of z3 has rewritten them, so that an error in z3's
rewriting cannot pass both solvers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvc5
import z3


def script(assertions: Sequence[Any]) -> str:
    """The assertions as an SMT-LIB script, each as it was made."""
    context = assertions[0].ctx
    *first, last = (assertion.as_ast() for assertion in assertions)
    array = (z3.Ast * len(first))(*first)
    return str(z3.Z3_benchmark_to_smtlib_string(context.ref(), "", "UFLIA", "unknown", "", len(first), array, last))


def check(smt2: str, milliseconds: int) -> str:
    """``unsat``, ``sat`` or ``unknown`` for an SMT-LIB script of assertions; what it says of a logic and of checks is
    left out.
    """
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(milliseconds))
    parser = cvc5.InputParser(solver)
    lines = (line for line in smt2.splitlines() if not line.startswith(("(set-logic", "(set-info", "(check-sat")))
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, "\n".join(["(set-logic UFLIA)", *lines]), "obligation")
    symbols = parser.getSymbolManager()
    while not (command := parser.nextCommand()).isNull():
        command.invoke(solver, symbols)
    result = solver.checkSat()
    return "unsat" if result.isUnsat() else "sat" if result.isSat() else "unknown"
