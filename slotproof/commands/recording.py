"""``slotproof record``, ``judge`` and ``watch``: a server's calls are written down, and judged later or at once."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from json import dumps
from pathlib import Path

from conformance.driver import exception_origin
from conformance.driver.lockstep import Finding
from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.engines import registry
from conformance.recording import asked
from conformance.recording.segments import NotARecording
from conformance.recording.started import start
from conformance.search.hunt import Difference
from conformance.search.judge import excluded
from conformance.search.recorded import Judged, judged_file, watched_file
from conformance.search.short_run import short_run
from conformance.stems.server.recorded.judged import JudgedServer
from conformance.telling.pasted import as_test
from conformance.traces import known
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.screen import broken, say, write_json

POLL_S = 0.2  # seconds between two looks at a file that is watched


@dataclass(frozen=True)
class JudgeOptions:
    """What was asked for.

    ``laws``: all laws are evaluated after each of so many calls, 0 for never. ``shrink``: seconds for the search for a
    short run that breaks the law, ``None`` for no such search; it is made on this ``release``, or on the code in the
    folder ``source``. ``name``: what the report calls the file.
    """

    file: Path
    laws: int = 0
    shrink: float | None = None
    release: str | None = None
    source: Path | None = None
    json: Path | None = None
    form: str = "text"
    name: str = ""


def demo(
    engine: str, release: str | None, source: Path | None, steps: int, file: Path, seed: int, kind: str | None = None
) -> int:
    """Drives an engine's real scheduler under random load, and records it. ``kind``: of server, where the engine has
    several.
    """
    plugin = registry.plugin(engine)
    if not hasattr(plugin, "under_load"):
        raise UsageError(f"--demo {engine}: no load of this engine can be recorded yet")
    kinds: Sequence[str] = getattr(plugin, "under_loads", ())
    if kind is not None and kind not in kinds:
        known = f"known: {', '.join(kinds)}" if kinds else "the engine has one kind of server"
        raise UsageError(f"--server {kind}: there is no such server; {known}")
    registry.must_be_installed(plugin)
    try:
        loaded = plugin.under_load(release, seed, source=source, **({} if kind is None else {"server": kind}))
        recorder = start(loaded.scheduler, file, ring=None)
    except (Unsupported, ValueError) as error:
        raise UsageError(f"--demo {engine}: {error}") from None
    except EngineError:
        raise
    except Exception as error:
        exception_origin.must_be_the_engines(error, "its scheduler's construction")
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"--demo {engine}: its scheduler cannot be built: the engine raised {what}") from None
    made, raised = 0, ""
    try:
        while made < steps:
            loaded.step()
            made += 1
    except Exception as error:
        exception_origin.must_be_the_engines(error, "a step")
        raised = f", and then the engine raised {type(error).__name__}, which ends a server"
    recorder.stop()
    if recorder.failure is not None:
        raise recorder.failure
    subject = f"{engine} {release or source or ''}".rstrip()
    say(f"{made} steps of {subject} under load, seed {seed}{raised}")
    say(f"{recorder.calls} calls were recorded, in {file.stat().st_size:,} bytes")
    say(f"slotproof judge {file}", wrap=False)
    return HOLDS


def server(command: Sequence[str], file: Path) -> int:
    """Runs a server that records itself: the process becomes the server."""
    if not command:
        raise UsageError("record: name an engine by --demo, or a server's command after --")
    if shutil.which(command[0]) is None:
        raise UsageError(f"record: there is no command {command[0]}")
    os.environ[asked.FILE] = str(file.absolute())
    os.execvp(command[0], [*command])


def judge(options: JudgeOptions) -> int:
    """Judges a recording, writes the result, prints it, and returns the exit code."""
    began = time.process_time()
    try:
        found = judged_file(options.file, options.laws)
    except (NotARecording, OSError) as error:
        raise UsageError(str(error)) from None
    wrong = found.broken
    short = None if wrong is None or options.shrink is None else _shrunk(found, wrong, options)
    data = {**_data(found, options), "short": None if short is None else short.trace.as_json()}
    write_json(options.json, data)
    if options.form == "json":
        print(dumps(data, indent=1))
    else:
        _print(found, options, time.process_time() - began)
        if wrong is not None and options.shrink is not None:
            _print_short(found, wrong, short, options)
    return HOLDS if found.broken is None else BROKEN


def watch(options: JudgeOptions, seconds: float | None) -> int:
    """Judges a recording while it is written. ``seconds``: so long, ``None`` without an end."""
    began, cpu = time.monotonic(), time.process_time()

    def waits(_: Judged | None) -> bool:
        time.sleep(POLL_S)
        return seconds is None or time.monotonic() - began < seconds

    try:
        found = watched_file(options.file, waits, options.laws)
    except (NotARecording, OSError) as error:
        raise UsageError(str(error)) from None
    if found is None:
        raise UsageError(f"{options.file}: no record has come while it was watched")
    _print(found, options, time.process_time() - cpu)
    return HOLDS if found.broken is None else BROKEN


def _shrunk(found: Judged, wrong: Finding, options: JudgeOptions) -> Difference | None:
    """A short run with the broken law, on small pools of the engine."""
    assert options.shrink is not None
    engine, stem = found.start.engine, _stem(found)
    loaded = registry.load(engine, options.release, options.source)
    plugin = registry.plugin(engine)
    release = options.release or (None if options.source is None else registry.release_of(engine, options.source))
    listed = known.of_release(plugin.folder, release)
    logging.disable()  # a server tells of each request that it refuses
    try:
        return short_run(stem, loaded.makers[stem], wrong, options.shrink, exclude=excluded(stem, listed))
    finally:
        logging.disable(logging.NOTSET)


def _stem(found: Judged) -> str:
    """The stem whose drawn runs drive what was recorded."""
    return "server" if isinstance(found, JudgedServer) else "block_cache"


def _print_short(found: Judged, wrong: Finding, short: Difference | None, options: JudgeOptions) -> None:
    if short is None:
        say(f"no run that breaks this law on a small pool was found in {options.shrink:.0f} s")
        return
    engine = found.start.engine
    count = len(short.trace.steps)
    say(f"a run of {count} operations breaks the law ({short.how}):")
    for number, line in enumerate(short.trace.lines(), start=1):
        say(f"  {number}. {line}")
    say("A pytest test that fails while the law is broken:", style="dim")
    say(as_test(short.trace, wrong.law, wrong.kind, engine, options.release, options.source), wrap=False)


def _data(found: Judged, options: JudgeOptions) -> Json:
    start, wrong = found.start, found.broken
    first: Json | None = None
    if wrong is not None:
        first = {
            **{"call": found.calls, "time": _time(found.at), "law": wrong.law, "kind": wrong.kind},
            **{"sentence": wrong.sentence, "detail": wrong.detail, "function": found.function},
            "requests": found.requests,
        }
    return {
        **{"recording": options.name or str(options.file), "engine": start.engine, "version": start.version},
        **{"config": start.config, "since": _time(start.at), "calls": found.calls, "states": found.starts},
        **{"functions": dict(found.by_function), "laws_after_each": options.laws, "first": first},
    }


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="microseconds")


def _print(found: Judged, options: JudgeOptions, seconds: float) -> None:
    name, start = options.name or str(options.file), found.start
    if (wrong := found.broken) is None:
        calls = f"no law is broken in {found.calls} calls, from a state that was read at {_time(start.at)}"
        say((calls, "green"))
    else:
        _print_wrong(found)
        say(f"  broken: {broken(wrong.law, wrong.kind)}")
        say(f"  law:    {wrong.sentence}")
        say(f"  detail: {wrong.detail}")
    say(f"recorded: {start.engine} {start.version}".rstrip() + f", {_pool(found)}, in {name}")
    say(f"evaluated: {_evaluated(found, options)}")
    if found.calls:
        say(f"{found.calls} calls in {seconds:.1f} s of processor time")


def _pool(found: Judged) -> str:
    config = found.start.config
    if isinstance(found, JudgedServer):
        return f"{config['size']} pages of {config['page_size']} tokens, {config['rows']} rows"
    sizes = sorted({group.get("block_size", config["block_size"]) for group in config["layers"]})
    return f"{config['blocks']} blocks of {' or '.join(map(str, sizes))} tokens"


def _print_wrong(found: Judged) -> None:
    if not found.calls:
        state = f"the state that was read at {_time(found.start.at)} breaks a law"
        say((f"{state}: who made it so was not recorded", "bold red"))
        return
    many = "request" if len(found.requests) == 1 else "requests"
    whom = f", {many} {', '.join(found.requests)}" if found.requests else ""
    call = f"call {found.calls}, {found.function or 'before which the state was shown'}"
    say((f"the first wrong call is {call} at {_time(found.at)}{whom}", "bold red"))


def _evaluated(found: Judged, options: JudgeOptions) -> str:
    laws = f", and after each {options.laws} calls" if options.laws else ""
    if isinstance(found, JudgedServer):
        left = (
            f"; not yet the last {found.unjudged}, in which something is not done or not told" if found.unjudged else ""
        )
        return f"after each call what it did, and all that the server showed{laws}{left}"
    states = "once" if found.starts == 1 else f"{found.starts} times"
    return (
        "after each call the promises and choices of what it did, and each count, hash and table that it names; all "
        f"laws on the state with which the recording begins{laws}; the whole state was shown {states}"
    )
