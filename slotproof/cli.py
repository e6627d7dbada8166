"""``slotproof``: prove the law, check an engine against it, show the known bugs, replay a trace.

Exit codes: 0 the law holds; 1 a law is broken; 2 not inductive or unknown; 3 bad usage or a subject cannot be loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from conformance.subjects.errors import SubjectError
from slotproof import checking, documents, faulting, proving, replays
from slotproof import engines as releases
from slotproof import report as reports

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, rich_markup_mode=None)

Stems = Annotated[list[str] | None, typer.Argument(help="Stems; all of them if none is named.")]
Out = Annotated[Path | None, typer.Option("--json", help="Write the result to this file too.")]
Seed = Annotated[int | None, typer.Option(help="Draw other runs; without it they are always the same.")]
USAGE = 3


@app.command()
def prove(stem: Stems = None, json: Out = None) -> None:
    """Prove every transition against every invariant, with z3 and then cvc5."""
    raise typer.Exit(proving.run(stem or [], json))


@app.command()
def check(
    subject: Annotated[str, typer.Argument(help="ours or sglang")],
    stem: Stems = None,
    release: Annotated[str | None, typer.Option(help="An SGLang release, as 0.5.12.")] = None,
    source: Annotated[Path | None, typer.Option(help="A folder with an SGLang checkout.")] = None,
    examples: Annotated[int, typer.Option(min=1, help="How many runs to draw.")] = 200,
    steps: Annotated[int, typer.Option(min=0, help="Draw runs until this many steps are done.")] = 0,
    seed: Seed = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    json: Out = None,
) -> None:
    """Run a subject in lock-step with the law."""
    wanted = checking.Wanted(subject, release, source, device, tuple(stem or ()), examples, steps, seed)
    raise typer.Exit(checking.run(wanted, json))


@app.command()
def faults(
    name: Annotated[list[str] | None, typer.Argument(help="Faults; all of them if none is named.")] = None,
    seed: Seed = None,
    json: Out = None,
) -> None:
    """Show that each known bug is refuted by proof and found by the run."""
    raise typer.Exit(faulting.run(name or [], seed, json))


@app.command()
def replay(
    trace: Annotated[str, typer.Argument(help="A kept trace by name, or a file.")],
    subject: Annotated[list[str] | None, typer.Argument(help="ours, sglang; both if none is named.")] = None,
    release: Annotated[list[str] | None, typer.Option(help="SGLang releases; all known ones if none.")] = None,
    json: Out = None,
) -> None:
    """Replay one trace on subjects and releases."""
    raise typer.Exit(replays.run(trace, subject or [], release or [], json))


@app.command()
def engines(json: Out = None) -> None:
    """Check the SGLang releases on every stem, replay every kept trace on them, and write docs/findings.md."""
    raise typer.Exit(releases.run(json))


@app.command()
def report(out: Annotated[Path, typer.Option("-o", help="The folder to write to.")]) -> None:
    """Write the reviewer's page: the law, the matrix, every counterexample drawn."""
    raise typer.Exit(reports.run(out))


@app.command()
def docs(
    check: Annotated[bool, typer.Option("--check", help="Only say whether they are up to date.")] = False,
) -> None:
    """Write the generated parts of README.md and docs/."""
    raise typer.Exit(documents.write(check_only=check))


def main() -> None:
    """The console script: bad usage is one clear line and exit code 3, never a traceback."""
    try:
        code = app(standalone_mode=False)
    except TyperException as error:
        sys.exit(_complain(error.format_message()))
    except (SubjectError, ValueError) as error:
        sys.exit(_complain(str(error)))
    sys.exit(code or 0)


def _complain(message: str) -> int:
    print(f"slotproof: {' '.join(message.split())}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    main()
