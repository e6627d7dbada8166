"""The second solver: cvc5 reads each obligation as SMT-LIB text, and must also prove it."""

from __future__ import annotations

import cvc5


def check(smt2: str, milliseconds: int) -> str:
    """``unsat``, ``sat`` or ``unknown`` for an SMT-LIB script of assertions (its ``check-sat`` is added if missing)."""
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(milliseconds))
    parser = cvc5.InputParser(solver)
    script = "(set-logic UFLIA)\n" + smt2.replace("(check-sat)", "")
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "obligation")
    symbols = parser.getSymbolManager()
    while not (command := parser.nextCommand()).isNull():
        command.invoke(solver, symbols)
    result = solver.checkSat()
    return "unsat" if result.isUnsat() else "sat" if result.isSat() else "unknown"
