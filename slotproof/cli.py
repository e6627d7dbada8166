"""slotproof: the law of a KV cache's bookkeeping, proved, and compared with running engines."""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from conformance.driver.cache_folder import cache_folder
from conformance.driver.extras import must_have
from conformance.driver.naming import UsageError
from conformance.driver.printable import printable
from conformance.driver.protocol import EngineError
from conformance.engines import registry
from proofs.registry import STEMS
from slotproof.console import codes, needs, output, stdin, times, version

# Each command imports its module when it runs: torch and the provers take seconds to load, and need not be installed.
# A command that cannot do without them says so first (`must_have`); of an engine `registry.load` says it.
HELP = f"{__doc__}\n\n{codes.EXPLAINED}"
app = typer.Typer(add_completion=False, no_args_is_help=True, help=HELP, rich_markup_mode=None)
DEBUG = "SLOTPROOF_DEBUG"
LONGEST_WORD = 300  # characters of a word of a message, such as a path


class NamesEngines(TyperCommand):
    """A command whose help ends with the names of all engines, looked up when the help is shown."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The last lines of the help."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(f"Engines: {', '.join(registry.names())}.")


TRACE_HELP = (
    "A kept trace, see `slotproof list traces`; a JSON file; or FILE#2, the second finding in a report of check "
    "--json. - is standard input."
)
STEMS_HELP = f"Stems, the parts of the law: {', '.join(STEMS)}; default: all."
Stems = Annotated[list[str] | None, typer.Argument(help=STEMS_HELP)]


def _file(context: typer.Context, parameter: typer.CallbackParam, value: Path | None) -> Path | None:
    """Refuses a file that cannot be written, before any work is done, and one that gets another document too. Where it
    is standard output, what is printed for people goes to standard error.
    """
    option = parameter.opts[0]
    if value is None:
        return None
    given: dict[Path, str] = context.meta.setdefault("slotproof.files", {})
    if (other := given.setdefault(value.absolute(), option)) != option:
        where = "standard output" if value == output.STDOUT else str(value)
        raise UsageError(f"{option} {value}: {other} goes to {where} already, and a file holds one document")
    if value == output.STDOUT:
        from slotproof.console.screen import console

        console.stderr = True
    return output.file_to_write(value, option)


def _one_document(json: Path | None, form: str) -> None:
    """Refuses ``--json -`` beside a ``--format`` that prints for machines on standard output, too."""
    if json == output.STDOUT and form != "text":
        raise UsageError(f"--json -: --format {form} prints on standard output already, and it holds one document")


def _folder(parameter: typer.CallbackParam, value: Path | None) -> Path | None:
    """Refuses a folder that cannot be written to, before any work is done."""
    return None if value is None else output.folder_to_write(value, parameter.opts[0])


def _source(parameter: typer.CallbackParam, value: Path | None) -> Path | None:
    """Refuses a folder of source code that is not there, before anything is loaded."""
    if value is not None and not value.is_dir():
        wrong = "this is a file, a folder is wanted" if value.exists() else "there is no such folder"
        raise UsageError(f"{parameter.opts[0]} {value}: {wrong}")
    return value


def _one_of(release: str | None, source: Path | None) -> None:
    """Refuses a release beside a folder: an engine is loaded from one place."""
    if release is not None and source is not None:
        raise UsageError(f"--release {release}: --source {source} says already what is loaded, give one of them")


def _version(asked: bool) -> None:
    if asked:
        print(version.line())
        raise typer.Exit


Out = Annotated[
    Path | None,
    typer.Option("--json", help="Also write the result to this file, as JSON; - is standard output.", callback=_file),
]
Seed = Annotated[int | None, typer.Option(help="Seed of the random runs; without it every call draws the same runs.")]

Options = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of the engine, see `slotproof list options`; can be repeated."),
]

CallLimit = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="A call or a maker of the engine that takes longer hangs: a finding, or an error."
    ),
]


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback where Slotproof itself fails, as {DEBUG}=1 does.")
    ] = False,
    show_version: Annotated[  # noqa: ARG001 (its callback answers)
        bool,
        typer.Option("--version", help="Show the version and where it is installed.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """The options of every command."""
    if debug:
        os.environ[DEBUG] = "1"


@app.command()
def prove(
    stem: Stems = None,
    json: Out = None,
    certificates: Annotated[
        Path | None,
        typer.Option(
            help="A folder for what cvc5 proved (.smt2) and its proofs (.cpc), which the checker Ethos reads.",
            callback=_folder,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Prove everything anew: what earlier runs proved is remembered, and is not believed here."
        ),
    ] = False,
    minimal: Annotated[
        bool,
        typer.Option("--minimal", help="Drop each promise, choice and fit in turn, and list those that no law needs."),
    ] = False,
) -> None:
    """Prove the law with z3 and with cvc5.

    Every transition must keep every invariant. What a solver proved before is remembered by the text that it gets.
    """
    must_have("prove", "prove")
    if minimal:
        from slotproof.proving import minimal as dropping

        if certificates is not None:
            raise UsageError("--minimal writes no certificates: it proves nothing new")
        raise typer.Exit(dropping.run(stem or [], json))
    from slotproof.proving import proving

    raise typer.Exit(proving.run(stem or [], json, certificates, fresh))


@app.command()
def mutate(
    what: Annotated[
        Literal["spec", "impl", "engine"],
        typer.Argument(
            help="What to edit: spec, which is the law; impl, our implementation; or a release of an engine."
        ),
    ],
    stem: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STEM]...|ENGINE", help=f"{STEMS_HELP} Of engine: the engine's name."),
    ] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(help="Only edits of this operator, see `slotproof list operators`; can be repeated."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            "--count",
            min=1,
            help="Try only so many edits, drawn at random; by default 200 of impl and 40 of an engine.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of what is drawn; by default 7 of spec, and 0 of impl and of an engine.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Edits judged at a time; default: the processors.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Of impl and engine: time after which no other edit is tried, for example 10m.")
    ] = None,
    release: Annotated[str | None, typer.Option(help="Of engine: the release that is edited.")] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="Of engine: only edits of this file or folder below its package, for example v1/kv_offload; can be "
            "repeated.",
        ),
    ] = None,
    first: Annotated[
        bool, typer.Option("--first", help="Of engine: a check ends with its first new violation, once it is shrunk.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Write the result to docs/mutation.json (mutation_impl.json, mutation_engines.json), for the pages.",
        ),
    ] = False,
    list_operators: Annotated[
        bool, typer.Option("--list-operators", help="Only list the operators and how many edits each makes.")
    ] = False,
    json: Out = None,
) -> None:
    """Edit the law, our implementation or an engine, and see whether each edit is noticed.

    An edit is a mistake that a programmer could make. spec: it drops a condition, a field, a promise or a call of a
    transition, is off by one, takes one pool for the other, ignores an argument, or asks more or less of its caller; a
    law must refute it, or what judges the promises. impl: it changes one place; check ours, or where the law leaves a
    choice a test, must notice it. engine: it changes one place of a release's bookkeeping that runs execute;
    `slotproof check ENGINE --source COPY --base RELEASE` must find it. Exit code 1 if fewer than 97% are noticed of
    spec, 95% of impl, 80% of an engine.
    """
    from slotproof.checks import checking

    if what == "engine":
        from slotproof.planted import mutating_engine

        if operator or jobs or list_operators or len(stem or []) != 1:
            what_else = "--operator, --jobs and --list-operators are not for it, since nobody chooses its edits"
            raise UsageError(f"mutate engine needs the name of one engine; {what_else}")
        limit = None if budget is None else checking.seconds(budget, None)
        engine, count = (stem or [""])[0], sample or mutating_engine.COUNT
        files = tuple(file or ())
        drawn = mutating_engine.EngineMutationOptions(
            engine, release, seed or 0, count, first, limit, keep, json, files
        )
        raise typer.Exit(mutating_engine.run(drawn))
    if release is not None or first or file:
        raise UsageError("--release, --file and --first are for mutate engine")
    if what == "impl":
        from slotproof.planted import mutating_impl

        if list_operators:
            raise typer.Exit(mutating_impl.operators(json))
        limit = None if budget is None else checking.seconds(budget, None)
        chosen = (stem or [], operator or [], sample or mutating_impl.SAMPLE, seed or 0, jobs, limit, keep, json)
        raise typer.Exit(mutating_impl.run(mutating_impl.ImplMutationOptions(*chosen)))
    if budget is not None:
        raise UsageError("--budget is for mutate impl and engine: the edits of the law that are drawn are all tried")
    must_have("mutate spec", "prove", *registry.extras_of([registry.own()]))
    from proofs.mutation.record import SEED
    from slotproof.planted import mutating

    if list_operators:
        raise typer.Exit(mutating.operators(json))
    drawn_with = SEED if seed is None else seed
    raise typer.Exit(
        mutating.run(mutating.SpecMutationOptions(stem or [], operator or [], sample, drawn_with, jobs, keep, json))
    )


@app.command()
def diff(
    base: Annotated[str, typer.Argument(help="The old revision: a git revision, or a folder that holds a spec.")],
    head: Annotated[
        str | None, typer.Argument(help="The new revision; default: the files of the checkout as they are now.")
    ] = None,
    json: Out = None,
    form: Annotated[
        Literal["text", "github", "json"],
        typer.Option("--format", help="github: a page in Markdown for a pull request; json: JSON instead of text."),
    ] = "text",
) -> None:
    """Say what changed in the law between two revisions.

    The solvers decide what is weaker or stronger than before. The text of both revisions is executed: see SECURITY.md.
    """
    must_have("diff", "prove")
    from slotproof.review import diffing

    _one_document(json, form)
    raise typer.Exit(diffing.run(base, head, json, form))


@app.command(cls=NamesEngines)
def check(
    engine: Annotated[str, typer.Argument(help="The engine to check: a name listed below, or package.module:maker.")],
    stem: Stems = None,
    release: Annotated[str | None, typer.Option(help="A release of the engine, for example 0.5.12.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="A folder with the engine's source code. Its code is executed: see SECURITY.md.", callback=_source
        ),
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
        typer.Option(
            min=1,
            help="Number of random runs for each stem; by default 200, 25 of servers, or what the budget allows.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Go on until each stem has done this many operations.")] = 0,
    seed: Seed = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Stems judged at a time; default: the processors.")] = None,
    repaired: Annotated[
        bool,
        typer.Option(
            "--repaired", help="Repair the known causes of the release, and draw what they stood in the way of."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="Where the engine's tensors are: cpu or cuda.")] = "cpu",
    option: Options = None,
    call_limit: CallLimit = "60s",
    json: Out = None,
    junit: Annotated[
        Path | None, typer.Option(help="Also write the result to this file, as JUnit XML.", callback=_file)
    ] = None,
    sarif: Annotated[
        Path | None,
        typer.Option(help="Also write the findings to this file, as SARIF 2.1.0 for code scanning.", callback=_file),
    ] = None,
    form: Annotated[
        Literal["text", "github"], typer.Option("--format", help="github: with annotations for GitHub Actions.")
    ] = "text",
) -> None:
    """Run an engine beside the law and compare them.

    Operations are drawn at random. After each call the engine is read once, and its state must keep the law.
    """
    from conformance.driver.options import parsed
    from conformance.search.connection import Subject
    from slotproof.checks import checking
    from slotproof.console.times import seconds as seconds_of

    _one_document(json, form)
    _one_of(release, source)
    raise typer.Exit(
        checking.run(
            checking.CheckOptions(
                Subject(engine, release, source, device, tuple(stem or ()), parsed(option or [])),
                base=base,
                stems=tuple(stem or ()),
                examples=examples,
                steps=steps,
                seed=seed,
                budget=checking.seconds(budget, source),
                workers=workers or checking.workers(),
                json=json,
                junit=junit,
                sarif=sarif,
                format=form,
                call_limit=seconds_of(call_limit, "--call-limit"),
                repaired=repaired,
            )
        )
    )


@app.command(cls=NamesEngines)
def campaign(
    engine: Annotated[str, typer.Argument(help="The engine: a name listed below, or package.module:maker.")],
    stem: Stems = None,
    time: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long trials are begun, for example 90s, 10m or 8h.")
    ] = "10m",
    workers: Annotated[int | None, typer.Option(min=1, help="Trials at a time; default: the processors.")] = None,
    release: Annotated[str | None, typer.Option(help="A release of the engine, for example 0.5.12.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="A folder with the engine's source code. Its code is executed: see SECURITY.md.", callback=_source
        ),
    ] = None,
    option: Options = None,
    out: Annotated[
        Path | None, typer.Option("-o", help="The folder of the campaign; one that is there goes on.", metavar="DIR")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="From which the seeds of all trials are made; default: fresh.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Do the trials on this Ray cluster; local: Ray on this machine."),
    ] = None,
    steer: Annotated[
        Literal["", "distinct", "rare"],
        typer.Option(help="Draw runs like those that cover much (distinct), or what few others cover (rare)."),
    ] = "",
    call_limit: CallLimit = "60s",
    json: Out = None,
) -> None:
    """Run an engine beside the law for hours, on all cores.

    What is found and what was covered is kept in a folder, also where the command is killed, and adds up.
    """
    from conformance.driver.options import parsed
    from conformance.search.connection import Subject
    from slotproof.commands import campaign as campaigning
    from slotproof.console.times import seconds as seconds_of

    _one_of(release, source)
    subject = Subject(engine, release, source, "cpu", tuple(stem or ()), parsed(option or []))
    limit, lasts = seconds_of(call_limit, "--call-limit"), seconds_of(time, "--for")
    campaigning.must_be_known(subject)
    folder = output.folder_to_write(out or campaigning.folder_of(subject), "-o")
    asked = campaigning.CampaignOptions(subject, lasts, folder, subject.stems, workers, seed, ray, steer, limit, json)
    raise typer.Exit(campaigning.run(asked))


@app.command()
def verify(
    fresh: Annotated[bool, typer.Option("--fresh", help="Prove all: no proof is remembered.")] = False,
) -> None:
    """Prove the law, check our implementation, show every known bug.

    Takes about 2 minutes on 2 cores. The last line says what was verified, or what failed.
    """
    must_have("verify", "prove", *registry.extras_of([registry.own()]))
    from slotproof.commands import verifying

    raise typer.Exit(verifying.run(fresh))


@app.command()
def faults(
    name: Annotated[list[str] | None, typer.Argument(help="Faults, see `slotproof list faults`; default: all.")] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Find each bug from nothing, by random runs; takes many minutes.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the search; without it every search draws the same runs.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Write the result of the search to docs/faults.json, for the pages.")
    ] = False,
    json: Out = None,
) -> None:
    """Plant each known bug; a proof and a run must show it.

    Each bug is planted in the law, where a proof must refute it, and in our implementation, where its kept run must
    show it; on the right implementation this run must show nothing. With --search random runs, which know nothing of
    the bug, must find it.
    """
    must_have("faults", "prove", *registry.extras_of([registry.own()]))
    from slotproof.planted import faulting

    raise typer.Exit(faulting.run(faulting.FaultOptions(name or [], search, seed, keep, json)))


@app.command(cls=NamesEngines)
def replay(
    trace: Annotated[str, typer.Argument(help=TRACE_HELP)],
    engine: Annotated[
        list[str] | None,
        typer.Argument(
            help="Engines: names listed below, or package.module:maker; default: our own, and every engine that has "
            "releases."
        ),
    ] = None,
    release: Annotated[
        list[str] | None, typer.Option(help="Releases; default: all that `slotproof engines` checks.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="A folder with the source code of the one engine that is named.", callback=_source),
    ] = None,
    option: Options = None,
    call_limit: CallLimit = "60s",
    json: Out = None,
) -> None:
    """Repeat one recorded run on engines and releases."""
    from conformance.driver.options import parsed
    from slotproof.checks import replays
    from slotproof.console.times import seconds as seconds_of

    _one_of(release[0] if release else None, source)

    with stdin.as_file(trace) as file:
        asked = replays.ReplayOptions(
            file,
            tuple(engine or ()),
            tuple(release or ()),
            json,
            parsed(option or []),
            source,
            seconds_of(call_limit, "--call-limit"),
        )
        raise typer.Exit(replays.run(asked))


@app.command(cls=NamesEngines)
def compat(
    engine: Annotated[str, typer.Argument(help="The engine whose allocators can be replaced.")],
    release: Annotated[str | None, typer.Option(help="A release of the engine, for example 0.5.12.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="A folder with the engine's source code, which is read; --tests executes it.", callback=_source
        ),
    ] = None,
    tests: Annotated[
        bool, typer.Option("--tests", help="Run the engine's own tests, on its own classes and on our classes.")
    ] = False,
    json: Out = None,
) -> None:
    """List what an engine's code needs of our allocators and ours lack.

    The engine's source is read, not executed. Exit code 1 if ours lack a member without a documented reason.

    With --tests the engine's own tests are downloaded and run, and each that fails on ours alone is listed with the
    reason. Exit code 1 if one has no documented reason, or if a reason is no longer needed.
    """
    from slotproof.commands import compat as comparing

    _one_of(release, source)
    if tests:
        raise typer.Exit(comparing.run_tests(engine, release, source, json))
    raise typer.Exit(comparing.run(engine, release, source, json))


@app.command()
def events(
    file: Annotated[
        Path, typer.Argument(help="A recorded stream: batches in msgpack, see docs/kv-events.md; - is standard input.")
    ],
    reader: Annotated[
        Literal["counts", "set"],
        typer.Option(help="counts: the reader counts copies of a block, as routers do. set: it forgets at a removal."),
    ] = "counts",
    late: Annotated[
        bool, typer.Option("--late", help="The recording began after the engine: earlier events are not known.")
    ] = False,
    json: Out = None,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="What is printed.")] = "text",
) -> None:
    """Judge a recorded stream of KV events.

    These tell a router which blocks an engine has cached. The first event that breaks the law is named.
    """
    from slotproof.commands import streaming

    _one_document(json, form)
    with stdin.as_file(str(file)) as stream:
        raise typer.Exit(streaming.run(streaming.StreamOptions(Path(stream), reader, late, json, form, str(file))))


@app.command(name="record", cls=NamesEngines)
def record_server(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The command that starts a server.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--output", help="The recording.")] = Path("cache.rec"),
    demo: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Record this engine's real scheduler under random load.")
    ] = None,
    release: Annotated[str | None, typer.Option(help="With --demo: a release; the newest without.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="With --demo: a folder with the engine's source code.", callback=_source)
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="With --demo: so many steps of the scheduler.")] = 2000,
    seed: Annotated[int, typer.Option(help="With --demo: the seed of the load.")] = 1,
    server: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="With --demo: plain, window, states, parts or sizes; see the page."),
    ] = None,
) -> None:
    """Record what a server does to its KV cache, call by call.

    The recording has no text and no token. See docs/recording.md.
    """
    from slotproof.commands import recording

    _one_of(release, source)
    if demo is not None and command:
        raise UsageError(f"--demo {demo}: a server's command is given, too; give one of them")
    if demo is None and server is not None:
        raise UsageError(f"--server {server}: it is of --demo, which is not given")
    raise typer.Exit(
        recording.server(command or [], out)
        if demo is None
        else recording.demo(demo, release, source, steps, out, seed, server)
    )


@app.command()
def judge(
    file: Annotated[Path, typer.Argument(help="A recording of `slotproof record`, or of slotproof.record.")],
    laws: Annotated[int, typer.Option(min=0, help="Evaluate all laws after each of so many calls; 0: at starts.")] = 0,
    shrink: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Search so long for a short run that breaks the law: a test."),
    ] = None,
    release: Annotated[str | None, typer.Option(help="With --shrink: the release that was recorded.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="With --shrink: a folder with the code that was recorded.", callback=_source)
    ] = None,
    json: Out = None,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="What is printed.")] = "text",
) -> None:
    """Judge a recording, and name the first wrong call.

    Exit code 1 if a law is broken; 3 if the file is no recording, or nothing in it can be judged.
    """
    from slotproof.commands import recording

    _one_document(json, form)
    _one_of(release, source)
    if shrink is not None and release is None and source is None:
        raise UsageError("--shrink: name what was recorded by --release or --source")
    limit = None if shrink is None else times.seconds(shrink, "--shrink")
    raise typer.Exit(recording.judge(recording.JudgeOptions(file, laws, limit, release, source, json, form, str(file))))


@app.command()
def watch(
    file: Annotated[Path, typer.Argument(help="A recording that a server writes now.")],
    laws: Annotated[int, typer.Option(min=0, help="Evaluate all laws after each of so many calls; 0: at starts.")] = 0,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Watch so long; without it until Ctrl-C.")
    ] = None,
) -> None:
    """Judge a recording while it is written, and name the first wrong call when it happens.

    Exit code 1 when a law is broken; 0 if none was while the recording was watched.
    """
    from slotproof.commands import recording

    limit = None if for_ is None else times.seconds(for_, "--for")
    raise typer.Exit(recording.watch(recording.JudgeOptions(file, laws, name=str(file)), limit))


@app.command()
def causes(
    names: Annotated[list[str] | None, typer.Argument(metavar="[cause]...", help="Only these causes.")] = None,
    batches: Annotated[int, typer.Option(min=1, help="Steps with a batch that repaired schedulers make.")] = 2000,
    seed: Annotated[int, typer.Option(help="The seed of the random clients of repaired schedulers.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Write docs/causes.json, and the pages of the causes.")] = False,
) -> None:
    """Show the causes of findings, and try their repairs.

    Each kept trace of a cause is replayed on the newest release, as it is and repaired at run time. Then random clients
    send messages to repaired schedulers, on which every law must hold.
    """
    from slotproof.commands import causes as trying

    raise typer.Exit(trying.run(names or [], batches, seed, keep))


@app.command()
def mends(
    names: Annotated[list[str] | None, typer.Argument(metavar="[finding]...", help="Only these findings.")] = None,
    engine: Annotated[str | None, typer.Option(help="Only findings of this engine.")] = None,
    release: Annotated[str | None, typer.Option(help="Only findings that this release was the last to show.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Write docs/mends.json, and the pages of the findings.")] = False,
) -> None:
    """Find what repaired the findings of older releases (takes long).

    In the last release that shows a finding, functions are replaced at run time by their text in the next release. With
    those that are the cause the kept trace keeps the law. Exit code 1 if docs/mends.json says something else.
    """
    from slotproof.commands import mends as mending

    raise typer.Exit(mending.run(names or [], engine, release, keep))


@app.command()
def reach(
    names: Annotated[list[str] | None, typer.Argument(metavar="[finding]...", help="Only these findings.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Write docs/chains.json, and the pages of the findings.")
    ] = False,
) -> None:
    """Show how a server comes to the call of a finding.

    For each finding of a part of an engine: a chain of calls from a message handler or a loop of the server to the
    function that the trace calls last, by the syntax trees of the last release that shows it. No chain: no caller. Exit
    code 1 if docs/chains.json says something else.
    """
    from slotproof.commands import reach as reaching

    raise typer.Exit(reaching.run(names or [], keep))


@app.command()
def blind(
    engine: Annotated[str, typer.Argument(help="An engine with releases; its newest release is searched.")],
    seed: Annotated[
        list[int] | None, typer.Option("--seed", min=0, help="Seeds, one search each; default: 1, 2 and 3.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, max=1000.0, help="Of each search.")] = 10.0,
    keep: Annotated[bool, typer.Option("--keep", help="Write docs/blind.json, and the page made from it.")] = False,
    json: Out = None,
) -> None:
    """Search for an engine's known causes from nothing (30 minutes).

    No kept trace is replayed and no known difference is avoided. Where the repair of a cause mends what was found, the
    search goes on with this repair. Exit code 1 if fewer than 80% of the causes are found that were not used to shape
    the search (95% in ten times of the default).
    """
    from slotproof.commands import blind as searching

    raise typer.Exit(searching.run(engine, seed or [1, 2, 3], minutes, keep, json))


@app.command()
def engines(
    stems: Annotated[
        list[str] | None,
        typer.Argument(metavar="[stem]...", help="Only these stems; of others the documents keep what they say."),
    ] = None,
    release: Annotated[
        list[str] | None,
        typer.Option(help="Only this release; of others the documents keep what they say. Can be repeated."),
    ] = None,
    newest: Annotated[
        bool, typer.Option("--newest", help="Only say whether the newest release on the package index can be loaded.")
    ] = False,
    issues: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --newest: a folder for the text of an issue about each release that has appeared.",
            callback=_folder,
        ),
    ] = None,
    json: Out = None,
) -> None:
    """Check all releases of all engines (takes long).

    Every kept trace is replayed on each release too. The result is docs/findings.json, docs/functions.json (which
    functions of the newest releases lead to which transitions) and the documents made from them.
    """
    if newest and release:
        raise UsageError("--newest looks at the newest release on the package index: it takes no --release")
    if newest:
        from slotproof.commands import newest as latest

        raise typer.Exit(latest.run(json, issues))
    if issues is not None:
        raise UsageError("--issues is for --newest")
    needs.needed_for_releases("engines")
    from slotproof.commands import engines as releases

    raise typer.Exit(releases.run(json, stems or (), release or ()))


@app.command()
def report(
    out: Annotated[Path, typer.Option("-o", help="The folder to write to.", callback=_folder)],
    trace: Annotated[str | None, typer.Option("--trace", metavar="FILE", help=f"Only this trace. {TRACE_HELP}")] = None,
    engine: Annotated[str | None, typer.Option(help="With --trace: the engine that it runs on.")] = None,
    release: Annotated[str | None, typer.Option(help="With --trace: the engine's release.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="With --trace: a checkout of the engine.", callback=_source)
    ] = None,
) -> None:
    """Write HTML pages on which every finding can be stepped through.

    They also show the theorems, the law and the proofs. With --trace: the page of one trace alone.
    """
    if trace is not None:
        from slotproof.pages import trace_page

        _one_of(release, source)
        with stdin.as_file(trace) as file:
            raise typer.Exit(trace_page.run(out, file, engine, release, source))
    if given := [name for name, value in (("engine", engine), ("release", release), ("source", source)) if value]:
        raise UsageError(f"--{given[0]} is for one trace: name it with --trace")
    must_have("report", "prove", *registry.extras_of([registry.own()]))
    from slotproof.console.screen import say

    say("   0 s  reading the findings")  # what the report is made with takes seconds to load
    from slotproof.pages import report as page

    raise typer.Exit(page.run(out))


@app.command()
def docs(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a document is out of date.")] = False,
) -> None:
    """Write the generated documents.

    These are docs/laws.md, docs/findings.md and docs/causes.md with their pages, docs/status.md and other tables, and
    the marked parts of README.md.
    """
    needs.needed_for_documents("docs")
    from slotproof.pages import documents

    raise typer.Exit(documents.write(check_only=check))


@app.command("list")
def names(
    kind: Annotated[
        list[str] | None,
        typer.Argument(help="What to list: stems, faults, traces, engines, options, operators, causes; default: all."),
    ] = None,
    json: Out = None,
) -> None:
    """List names: of stems, faults, kept traces, engines and their options, operators of mutate, and causes."""
    from slotproof.commands import listing

    raise typer.Exit(listing.run(kind or [], json))


def run() -> int:
    """Runs the command in this process. Bad usage is one line on standard error, a failure of ours a short report."""
    if sys.stdout is not None:
        sys.stdout = output.Outlet(sys.stdout)
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache_folder() / "hypothesis"))  # not where the user is
    try:
        return _commands()(args=_with_values(sys.argv[1:] or ["--help"]), standalone_mode=False) or codes.HOLDS
    except TyperException as error:
        return _complain(_message(error))
    except codes.NotBuilt as error:
        return _complain(str(error), codes.FAILED)
    except (EngineError, UsageError) as error:
        return _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", codes.INTERRUPTED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # each name of a file is the user's
            return _complain(f"{error.filename}: the name is too long for a file")
        from slotproof.console import failure

        print(failure.told(error, debug=bool(os.environ.get(DEBUG))), file=sys.stderr)
        return codes.FAILED
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


@cache
def _commands() -> Any:
    """All commands: made once, since a process may run many of them."""
    return typer.main.get_command(app)


def _with_values(words: list[str]) -> list[str]:
    """The words of the command line, where ``--base`` without a value has the value ``default``, and where ``-#2``, a
    finding of a report on standard input, is not taken for an option. Raises ``UsageError`` for a word or a value that
    is empty, as where a variable of the shell is not set.
    """
    for before, word in zip(["slotproof", *words], words, strict=False):
        if not word:
            raise UsageError(f"a word after {before!r} is empty: is a variable of the shell not set?")
        if word.startswith("--") and word.endswith("="):
            raise UsageError(f"{word} has no value: is a variable of the shell not set?")
    words = [stdin.STDIN[1] + word[1:] if word.startswith("-#") else word for word in words]
    followed = zip(words, [*words, "-"][1:], strict=True)
    return [f"{word}=default" if word == "--base" and after.startswith("-") else word for word, after in followed]


def _message(error: TyperException) -> str:
    """What is wrong on the command line; for an unknown option, with the options that are close to it."""
    near = getattr(error, "possibilities", None)
    return f"{error.message}. Did you mean {' or '.join(near)}?" if near else error.format_message()


def _complain(message: str, code: int = codes.USAGE) -> int:
    words = (word if len(word) <= LONGEST_WORD else f"{word[:LONGEST_WORD]}…" for word in message.split())
    print(f"slotproof: {printable(' '.join(words))}", file=sys.stderr)
    return code
