"""The trusted base: the files in which an error could let a false law be proved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from proofs import (
    answers,
    asking,
    before,
    draining,
    fitting,
    lemmas,
    memory,
    obligations,
    prover,
    second_solver,
    symbols,
    wellformed,
)
from slotproof import spec_lint
from slotproof.spec_lint import plain_code
from spec import lengths, logic

# Beside Python, z3 and cvc5. The hints of a stem are not among them: what they say wrongly makes a proof fail.
TRUSTED = (
    *(logic, lengths, spec_lint, plain_code),
    *(symbols, lemmas, obligations, fitting, answers, draining, before, wellformed),
    *(asking, second_solver, memory, prover),
)


def trusted_base() -> list[dict[str, Any]]:
    """Of each file its path, the first sentence of its docstring, and how many lines it has."""
    found = []
    for module in TRUSTED:
        said = " ".join((module.__doc__ or "").split())
        lines = len(Path(str(module.__file__)).read_text("utf-8").splitlines())
        path = module.__name__.replace(".", "/") + ("/__init__.py" if hasattr(module, "__path__") else ".py")
        found.append({"path": path, "says": re.split(r"(?<=\.) ", said)[0], "lines": lines})
    return found
