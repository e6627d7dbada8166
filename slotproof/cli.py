"""slotproof: the law of a KV cache's bookkeeping, proved, and compared with running engines.

Exit codes: 0 every law holds; 1 a law is broken; 2 something is not proved; 3 bad usage, or an engine does not load.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from conformance.engines import registry
from conformance.engines.protocol import EngineError
from proofs.registry import STEMS

# Each command imports its module when it runs: torch and the provers take seconds to load.
app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, rich_markup_mode=None)
USAGE = 3


class NamesEngines(TyperCommand):
    """A command whose help ends with the names of all engines, looked up when the help is shown."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The last lines of the help."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(f"Engines: {', '.join(registry.names())}.")


STEMS_HELP = f"Stems, the parts of the law: {', '.join(STEMS)}; default: all."
Stems = Annotated[list[str] | None, typer.Argument(help=STEMS_HELP)]
Out = Annotated[Path | None, typer.Option("--json", help="Also write the result to this file, as JSON.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the random runs; without it every call draws the same runs.")]


@app.command()
def prove(stem: Stems = None, json: Out = None) -> None:
    """Prove the law with z3 and with cvc5.

    Every transition must keep every invariant.
    """
    from slotproof import proving

    raise typer.Exit(proving.run(stem or [], json))


@app.command(cls=NamesEngines)
def check(
    engine: Annotated[str, typer.Argument(help="The engine to check: a name listed below, or package.module:maker.")],
    stem: Stems = None,
    release: Annotated[str | None, typer.Option(help="A release of the engine, for example 0.5.12.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="A folder with the engine's source code. Its code is executed.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="Show only what breaks here and holds there: a folder, a git revision of the source, or a release. "
            "Without a value: the merge base with the main branch, else the release that the source says it is."
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time for all stems, for example 60s or 10m; with --source 60s by default.")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=1, help="Number of random runs for each stem; by default 200, or what the budget allows."),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Go on until each stem has done this many operations.")] = 0,
    seed: Seed = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Stems judged at a time; default: the processors.")] = None,
    device: Annotated[str, typer.Option(help="Where the engine's tensors are: cpu or cuda.")] = "cpu",
    json: Out = None,
) -> None:
    """Run an engine beside the law and compare them.

    Operations are drawn at random. After each call the engine is read once, and its state must keep the law.
    """
    from conformance.connection import Subject
    from slotproof import checking

    raise typer.Exit(
        checking.run(
            checking.Options(
                Subject(engine, release, source, device, tuple(stem or ())),
                base=base,
                stems=tuple(stem or ()),
                examples=examples,
                steps=steps,
                seed=seed,
                budget=checking.seconds(budget, source),
                workers=workers or checking.workers(),
                json=json,
            )
        )
    )


@app.command()
def faults(
    name: Annotated[list[str] | None, typer.Argument(help="Names of faults; default: all.")] = None,
    seed: Seed = None,
    json: Out = None,
) -> None:
    """Plant each known bug; proofs and runs must find it.

    Each bug is planted in the law, where a proof must refute it, and in our implementation, where random runs must
    find it.
    """
    from slotproof import faulting

    raise typer.Exit(faulting.run(name or [], seed, json))


@app.command(cls=NamesEngines)
def replay(
    trace: Annotated[str, typer.Argument(help="The name of a kept trace, or a JSON file.")],
    engine: Annotated[
        list[str] | None, typer.Argument(help="Engines; default: our own, and every engine that has releases.")
    ] = None,
    release: Annotated[
        list[str] | None, typer.Option(help="Releases; default: all that `slotproof engines` checks.")
    ] = None,
    json: Out = None,
) -> None:
    """Repeat one recorded run on engines and releases."""
    from slotproof import replays

    raise typer.Exit(replays.run(trace, engine or [], release or [], json))


@app.command()
def engines(json: Out = None) -> None:
    """Check all releases of all engines (takes long).

    Every kept trace is replayed on each release too. The result is docs/findings.json and the documents made from it.
    """
    from slotproof import engines as releases

    raise typer.Exit(releases.run(json))


@app.command()
def report(out: Annotated[Path, typer.Option("-o", help="The folder to write to.")]) -> None:
    """Write an HTML page with every finding drawn.

    It also shows the proofs and the law.
    """
    from slotproof import report as page

    raise typer.Exit(page.run(out))


@app.command()
def docs(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a document is out of date.")] = False,
) -> None:
    """Write the generated documents.

    These are docs/laws.md, docs/findings.md, docs/status.md, and the marked parts of README.md.
    """
    from slotproof import documents

    raise typer.Exit(documents.write(check_only=check))


def main() -> None:
    """The console script: bad usage ends with one clear line and exit code 3, without a traceback."""
    try:
        code = app(args=_with_values(sys.argv[1:]), standalone_mode=False)
    except TyperException as error:
        sys.exit(_complain(error.format_message()))
    except (EngineError, ValueError) as error:
        sys.exit(_complain(str(error)))
    sys.exit(code or 0)


def _with_values(words: list[str]) -> list[str]:
    """The words of the command line, where ``--base`` without a value has the value ``default``."""
    followed = zip(words, [*words[1:], "-"], strict=True)
    return [f"{word}=default" if word == "--base" and after.startswith("-") else word for word, after in followed]


def _complain(message: str) -> int:
    print(f"slotproof: {' '.join(message.split())}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    main()
