"""A process that has imported a release, and forks a child for each script: the import takes longer than most scripts.

``python tests/forked.py ENGINE RELEASE`` reads one request in JSON from each line of its standard input, ``{"script",
"argv", "out", "err", "path"}``, and runs the script with these arguments in a child. The outputs of the child are these
files, and it imports from the folders of ``path``, too. The child's exit code is written as a line. A child sees the
release as it was imported, whatever other scripts have changed.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = 300  # seconds for a script
MOST = 4  # processes with a release that a test process keeps
WATCHED = ("server", "host_server")  # functions of a release are watched from its first server on: plants come before


class Ended(NamedTuple):
    """How a script ended."""

    returncode: int
    stdout: str
    stderr: str

    def answer(self) -> Any:
        """The last line that the script printed, as JSON. The script must have ended well."""
        assert self.returncode == 0, self.stderr
        return json.loads(self.stdout.splitlines()[-1])


class Forked:
    """The process of a release of an engine."""

    def __init__(self, engine: str, release: str) -> None:
        command = [sys.executable, __file__, engine, release]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def run(self, script: str, arguments: Sequence[str], folders: Sequence[str]) -> Ended:
        """Runs the script in a child, which imports from these folders, too."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="slotproof-script-") as made:
            out, err = Path(made) / "out", Path(made) / "err"
            path = [*folders, *(folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder)]
            asked = {"script": script, "argv": list(arguments), "out": str(out), "err": str(err), "path": path}
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            code = int(self.process.stdout.readline())
            return Ended(code, out.read_text(errors="replace"), err.read_text(errors="replace"))

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()


_kept: OrderedDict[tuple[str, str], Forked] = OrderedDict()


def run(
    release: str, script: str, arguments: Sequence[str], engine: str = "sglang", folders: Sequence[str] = ()
) -> Ended:
    """Runs the script in a child of the release's process, which is begun where there is none. ``folders``: from which
    the script imports, too.
    """
    name = (engine, release)
    if name not in _kept:
        while len(_kept) >= MOST:
            _kept.popitem(last=False)[1].close()
        _kept[name] = Forked(engine, release)
    _kept.move_to_end(name)
    return _kept[name].run(script, arguments, folders)


@atexit.register
def _end() -> None:
    for one in _kept.values():
        one.close()


# The process of a release.


def main() -> None:
    """Imports the release, and then forks a child for each line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[0] = ""  # as of a script that is given by ``-c``
    import torch

    from conformance.engines import registry
    from conformance.search import check  # noqa: F401  # what scripts import is imported once, here
    from conformance.stems import exclusions  # noqa: F401
    from conformance.traces import trace_files

    torch.set_num_threads(1)
    loaded = registry.load(sys.argv[1], sys.argv[2])
    # One configuration of each shape: what makers import is imported once, here.
    told = {(kept.trace.stem, *sorted(kept.trace.config)): kept.trace for kept in trace_files.every()}
    makes = [(t.stem, partial(loaded.makers[t.stem], t.config)) for t in told.values() if t.stem in loaded.makers]
    for make in (make for stem, make in makes if stem not in WATCHED):
        with suppress(Exception):  # what this release lacks
            make()
    for name in (name for stem, make in makes if stem in WATCHED for name in _imported(make)):
        with suppress(Exception):
            import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        answers.flush()


def _imported(make: Callable[[], Any]) -> list[str]:
    """The modules of the engine that making something imports. It is made in a child alone."""
    from conformance.driver.forking import forked

    before = {*sys.modules}

    def made() -> list[str]:
        with suppress(Exception):
            make()
        return [name for name in sys.modules if name.startswith(f"{sys.argv[1]}.") and name not in before]

    return forked(made) or []


def _child(asked: dict[str, Any]) -> None:
    """Runs the script, and ends this process."""
    signal.alarm(LIMIT)
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv[:] = ["-c", *asked["argv"]]
    sys.path[1:1] = asked["path"]
    code = 0
    try:
        exec(compile(asked["script"], "<script>", "exec"), {"__name__": "__main__"})
    except SystemExit as leaves:
        code = leaves.code if isinstance(leaves.code, int) else int(leaves.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
