"""The kinds of bad input that the command line is given in ``tests/test_bad_input.py``: a list written before its first
run, so that it says what a user may do wrong and not what the messages happened to be.
"""

from __future__ import annotations

from typing import NamedTuple


class BadInput(NamedTuple):
    """A command line that must be refused. ``says``: what the one line on standard error must name, as a regular
    expression. ``stdin``: what stands on standard input. ``slow``: it starts a process, waits for a limit, or asks a
    network, so the nightly run has it.
    """

    words: str
    says: str
    stdin: bytes = b""
    slow: bool = False


# Files of the folder in which the commands run. Beside them: a folder `folder` with nothing in it, and `findings.json`,
# the report of a check with two findings.
ENGINE = """
from conformance.engines.toy import ToyAllocator
def make(config):
    return ToyAllocator(config["size"], config["page_size"])
"""
FILES: dict[str, bytes] = {
    "file.txt": b"kept\n",
    "empty.json": b"",
    "list.json": b"[1, 2, 3]",
    "other.json": b'{"name": "some package", "version": "1.0"}',
    "cut.json": b'{"stem": "cache", "config": {"size":',
    "binary.json": bytes(range(256)),
    "cut.msgpack": b"\x92\xcb\x00\x00",
    "bi_good.py": ENGINE.encode(),
    "bi_syntax.py": b"def make(config):\n    return (\n",
    "bi_indent.py": b"def make(config):\nreturn 1\n",
    "bi_raises.py": b"import json\n\njson.loads('{')\n",
    "bi_exits.py": b"import sys\nsys.exit(0)\n",
    "bi_dies.py": b"import os\nos._exit(0)\n",
    "bi_empty.py": b"",
    "bi_lacks_module.py": b"import no_such_module_anywhere\n",
    "bi_number.py": b"make = 7\n",
    "bi_stems.py": b"make = {'alocator': len}\nempty = {}\nnumber = {'allocator': 7}\n",
    "bi_none.py": b"def make(config):\n    return None\n",
    "bi_class.py": (ENGINE + "class Wrong:\n    pass\ndef wrong(config):\n    return Wrong()\n").encode(),
    "bi_arguments.py": b"def make():\n    return None\n",
    "bi_unsupported.py": (
        b"from slotproof.plugin import Unsupported\n"
        b"def make(config):\n    raise Unsupported('this engine runs with page size 7 alone')\n"
    ),
    "bi_hangs.py": b"import time\ndef make(config):\n    time.sleep(1000)\n",
    "bi_never.py": b"import time\ntime.sleep(1000)\n",
    "bi_answer.py": (
        ENGINE + "class Wrong(ToyAllocator):\n    def extend(self, *arguments):\n        return 'slots'\n"
        "def wrong(config):\n    return Wrong(config['size'], config['page_size'])\n"
    ).encode(),
}
A, B = BadInput, "bi_"

# No command, or none that there is.
COMMANDS = [
    A("chek ours", r"did you mean 'check'|chek"),
    A("--verison", r"--verison"),
    A("--json x.json", r"--json"),
    A("check", r"ENGINE"),
    A("replay", r"TRACE"),
    A("events", r"FILE"),
    A("diff", r"BASE"),
    A("campaign", r"ENGINE"),
    A("compat", r"ENGINE"),
    A("report", r"-o"),
    A("mutate", r"spec.*impl.*engine|WHAT"),
    A("verify --frsh", r"--fresh"),
    A("docs --chek", r"--check"),
    A("docs allocator", r"allocator"),
    A("verify ours", r"ours"),
]
# Options of check: numbers, times, names.
OPTIONS = [
    A("check ours --exampels 3", r"--examples"),
    A("record --demo vllm --server nosuch", r"--server nosuch.*plain, window, .*, drafted_states, drafts, sizes"),
    A("record --demo sglang --server parts", r"--server parts.*plain, tokens, window, short, chunks"),
    A("record --server parts", r"--server parts.*--demo"),
    A("record --demo vllm --server=", r"--server"),
    A("record --demo vllm --server parts ls", r"--demo vllm"),
    A("check ours --examples three", r"--examples.*integer"),
    A("check ours --examples 0", r"--examples"),
    A("check ours --examples -5", r"--examples"),
    A("check ours --examples 1.5", r"--examples"),
    A("check ours --examples", r"--examples"),
    A("check ours --steps -1", r"--steps"),
    A("check ours --seed x", r"--seed"),
    A("check ours --workers 0", r"--workers"),
    A("check ours --workers two", r"--workers"),
    A("check ours --budget soon", r"--budget soon.*60s"),
    A("check ours --budget 1s", r"--budget 1s"),
    A("check ours --budget 90000m", r"--budget 90000m"),
    A("check ours --budget -10s", r"--budget"),
    A("check ours --budget nan", r"--budget nan"),
    A("check ours --budget infs", r"--budget infs"),
    A("check ours --call-limit never", r"--call-limit never"),
    A("check ours --call-limit 0s", r"--call-limit 0s"),
    A("check ours --call-limit 60", r"--call-limit 60"),
    A("check ours --device tpu", r"tpu", slow=True),
    A("check ours alocator", r"did you mean allocator"),
    A("check ours allocator allocator", r"allocator.*twice"),
    A("check sgalng", r"did you mean sglang"),
    A("check ours --release 1.0", r"--release", slow=True),
    A("check ours --release=", r"--release"),
    A("check sglang --source=", r"--source"),
    A("check sglang --source nowhere", r"nowhere"),
    A("check sglang --source file.txt", r"file\.txt"),
    A("check sglang --source folder", r"folder", slow=True),
    A("check sglang --source folder --release 0.5.12", r"--release.*--source|--source.*--release"),
    A("check ours --base nowhere", r"--base"),
    A("check bi_good:make --source . --base nosuchrevision", r"nosuchrevision"),
    A("check ours --repaired", r"--repaired.*--release"),
    A("check sglang --release 0.5.12 --base 0.5.11 --repaired", r"--repaired.*--base"),
    A("check ours --option x", r"--option x.*NAME=VALUE"),
    A("check ours --option x=1", r"no option 'x'"),
    A("check ours --option =1", r"--option =1"),
    A("check ours --option a=1 --option a=2", r"--option"),
    A("check ours --format html", r"--format"),
    A("check ours --json=", r"--json"),
    A("check ours --json nowhere/x.json", r"--json nowhere/x\.json"),
    A("check ours --json folder", r"--json folder"),
    A("check ours --junit nowhere/x.xml", r"--junit nowhere/x\.xml"),
    A("check ours --sarif nowhere/x.sarif", r"--sarif nowhere/x\.sarif"),
    A("check ours --sarif folder", r"--sarif folder"),
    A("check ours --json - --junit -", r"--junit.*standard output|standard output.*--junit"),
    A("check ours --sarif - --json -", r"--json.*standard output|standard output.*--json"),
    A("check ours --json x.out --junit x.out", r"x\.out"),
    A("check ours --json - --format github", r"--format github"),
]
# Engines by their place. Each is loaded in a process of its own.
ENGINES = [
    A("check bi_nowhere:make", r"no module 'bi_nowhere'"),
    A("check bi_godo:make", r"did you mean bi_good", slow=True),
    A("check bi_good.py:make", r"did you mean bi_good:make", slow=True),
    A("check bi_good:mak", r"did you mean make", slow=True),
    A("check bi_good", r"bi_good:"),
    A("check bi_good.py", r"bi_good:"),
    A("check bi_good:", r"package\.module:maker|expected package", slow=True),
    A("check :make", r"expected package", slow=True),
    A("check bi_syntax:make", r"bi_syntax\.py:2"),
    A("check bi_indent:make", r"bi_indent\.py:2", slow=True),
    A("check bi_raises:make", r"bi_raises\.py:3"),
    A("check bi_exits:make", r"bi_exits"),
    A("check bi_dies:make", r"bi_dies", slow=True),
    A("check bi_empty:make", r"bi_empty.*no 'make'", slow=True),
    A("check bi_lacks_module:make", r"no_such_module_anywhere", slow=True),
    A("check bi_number:make", r"bi_number:make is of type int"),
    A("check bi_stems:make", r"did you mean allocator"),
    A("check bi_stems:empty", r"bi_stems:empty", slow=True),
    A("check bi_stems:number", r"int", slow=True),
    A("check bi_none:make allocator", r"returned None"),
    A("check bi_class:wrong allocator", r"Wrong", slow=True),
    A("check bi_class:Wrong", r"Wrong", slow=True),
    A("check bi_arguments:make allocator", r"make\(\) takes 0|argument", slow=True),
    A("check bi_unsupported:make", r"page size 7"),
    A("check bi_answer:wrong allocator --examples 5", r"'slots'.*expected|expected.*'slots'"),
    A("check bi_good:make lock_ref", r"lock_ref", slow=True),
    A("check bi_good:make --device cuda", r"cuda", slow=True),
    A("check bi_good:make --source folder --examples 5", r"imported nothing from there", slow=True),
    A("check bi_hangs:make --call-limit 5s", r"hangs.*bi_hangs\.py", slow=True),
    A("check bi_never:make --call-limit 5s", r"hangs.*bi_never\.py", slow=True),
    A("campaign bi_syntax:make -o c1", r"bi_syntax\.py:2", slow=True),
    A("replay insert_under_reader bi_syntax:make", r"bi_syntax\.py:2", slow=True),
    A("replay insert_under_reader bi_hangs:make --call-limit 5s", r"bi_hangs\.py", slow=True),
]
# Traces.
TRACES = [
    A("replay nothere.json", r"there is no file nothere\.json"),
    A("replay folder/nothere.json", r"there is no file folder/nothere\.json"),
    A("replay insert_under_raeder", r"did you mean insert_under_reader"),
    A("replay folder", r"folder.*folder"),
    A("replay empty.json", r"empty\.json"),
    A("replay list.json", r"list\.json.*object"),
    A("replay cut.json", r"cut\.json"),
    A("replay binary.json", r"binary\.json"),
    A("replay other.json", r"other\.json"),
    A("replay other.json#1", r"other\.json.*no report"),
    A("replay file.txt", r"file\.txt"),
    A("replay findings.json", r"findings\.json has 2 findings.*#1"),
    A("replay findings.json#9", r"no finding 9.*1.*2"),
    A("replay findings.json#0", r"no finding 0"),
    A("replay findings.json#-1", r"no finding -1"),
    A("replay findings.json#x", r"no finding x"),
    A("replay findings.json#new.7", r"no finding new\.7"),
    A("replay findings.json#", r"findings\.json.*#"),
    A("replay findings.json#1 nosuchengine", r"nosuchengine"),
    A("replay nofindings.json", r"without findings"),
    A("replay insert_under_reader#1", r"insert_under_reader.*#1|no report"),
    A("replay nothere.json#1", r"there is no file nothere\.json"),
    A("replay insert_under_reader nosuchengine", r"no engine 'nosuchengine'"),
    A("replay insert_under_reader bi_nowhere:make", r"bi_nowhere"),
    A("replay insert_under_reader ours --release 1.0", r"--release 1\.0"),
    A("replay insert_under_reader ours --option x=1", r"no option 'x'"),
    A("replay insert_under_reader ours --json folder", r"--json folder"),
    A("replay -", r"standard input"),
    A("replay -", r"standard input.*object|standard input", b"[1, 2]"),
    A("replay -#3", r"standard input", b"{}"),
    A("report -o page --trace nothere.json", r"there is no file nothere\.json"),
    A("report -o page --trace insert_under_raeder", r"did you mean insert_under_reader"),
    A("report -o page --trace findings.json#9", r"no finding 9"),
    A("report -o page --trace findings.json", r"findings\.json has 2 findings"),
    A("report -o page --trace -", r"standard input"),
    A("report -o page --trace other.json", r"other\.json"),
    A("report -o page --trace insert_under_reader --engine nosuch", r"nosuch"),
    A("report -o page --trace insert_under_reader --engine ours --release 1", r"--release", slow=True),
    A("report -o page --trace insert_under_reader --engine sglang --source nowhere", r"nowhere"),
    A("report -o page --engine ours", r"--engine.*--trace"),
    A("report -o page --release 1", r"--release.*--trace"),
    A("report -o file.txt", r"-o file\.txt"),
]
# Streams of events.
EVENTS = [
    A("events nothere.msgpack", r"nothere\.msgpack"),
    A("events folder", r"folder"),
    A("events file.txt", r"file\.txt"),
    A("events empty.json", r"empty\.json"),
    A("events list.json", r"list\.json"),
    A("events cut.msgpack", r"cut\.msgpack"),
    A("events list.json --reader router", r"--reader"),
    A("events list.json --format xml", r"--format"),
    A("events list.json --json folder", r"--json folder"),
    A("events -", r"standard input"),
    A("events -", r"standard input", b"no events"),
    A("events - --json - --format json", r"--format json|--json"),
]
# The law: proofs, edits, differences, bugs, causes.
LAW = [
    A("prove lock_rfe", r"did you mean lock_ref"),
    A("prove server", r"server"),
    A("prove allocator --json folder", r"--json folder"),
    A("prove --certificates file.txt", r"--certificates file\.txt"),
    A("prove --minimal --certificates folder", r"--minimal"),
    A("mutate law", r"spec"),
    A("mutate spec nosuchstem", r"nosuchstem"),
    A("mutate spec --operator nosuch", r"slotproof list operators"),
    A("mutate impl --operator nosuch", r"nosuch"),
    A("mutate impl --budget soon", r"--budget soon"),
    A("mutate spec --budget 1m", r"--budget"),
    A("mutate spec --release 1", r"--release"),
    A("mutate spec --jobs 0", r"--jobs"),
    A("mutate spec --sample 0", r"--sample"),
    A("mutate spec --keep --seed 8", r"without another seed"),
    A("mutate engine", r"one engine"),
    A("mutate engine nosuch --release 1", r"nosuch"),
    A("mutate engine ours", r"ours"),
    A("mutate engine sglang --operator x", r"--operator"),
    A("diff nosuchrevision", r"nosuchrevision"),
    A("diff folder", r"folder"),
    A("diff file.txt", r"file\.txt"),
    A("diff HEAD nosuchrevision", r"nosuchrevision|HEAD"),
    A("diff HEAD --format html", r"--format"),
    A("faults nosuch", r"nosuch"),
    A("faults --seed x", r"--seed"),
    A("faults --keep", r"--search"),
    A("causes nosuch", r"nosuch"),
    A("causes --batches 0", r"--batches"),
    A("mends nosuch", r"no trace 'nosuch'"),
    A("mends --engine ours", r"ours"),
    A("mends --release 0.4.1", r"0\.4\.1"),
    A("mends tail_inside_page", r"tail_inside_page"),
    A("mends --engine vllm --release 0.5.12", r"0\.5\.12"),
    A("blind nosuch", r"no engine with releases 'nosuch'"),
    A("blind ours", r"no engine with releases 'ours'"),
    A("blind sglang --seed 1 --seed 1", r"a seed is given twice"),
    A("blind sglang --minutes 0", r"minutes"),
    A("reach nosuch", r"no trace 'nosuch'"),
    A("reach preempted_in_its_step", r"preempted_in_its_step"),
    A("list nosuch", r"nosuch"),
    A("list fault", r"did you mean faults"),
    A("list stems --json folder", r"--json folder"),
]
# Campaigns and releases.
RELEASES = [
    A("campaign nosuch", r"nosuch"),
    A("campaign ours alocator", r"did you mean allocator"),
    A("campaign ours --for soon", r"--for soon"),
    A("campaign ours --for 1s", r"--for 1s"),
    A("campaign ours --workers 0", r"--workers"),
    A("campaign ours --steer best", r"--steer"),
    A("campaign ours --option x=1", r"no option 'x'"),
    A("campaign ours -o file.txt", r"-o file\.txt"),
    A("campaign ours --json folder -o c2", r"--json folder"),
    A("campaign ours --source nowhere -o c3", r"nowhere"),
    A("engines nosuchstem", r"nosuchstem"),
    A("engines --release 9.9", r"9\.9"),
    A("engines --newest --release 0.5.23", r"--newest .*--release"),
    A("engines --json folder", r"--json folder"),
    A("compat nosuch", r"nosuch"),
    A("compat ours", r"ours"),
    A("compat sglang --source nowhere", r"nowhere"),
    A("compat sglang --source folder", r"folder"),
    A("compat toy --release 1.0 --tests", r"toy: this engine has no tests"),
    A("compat vllm --source folder --tests", r"folder"),
]
# Names that no system takes for a file. Added after the first run of the list.
LONG = "x" * 5_000
NAMES = [
    A(f"replay {LONG}", r"no trace|too long"),
    A(f"replay {LONG}.json", r"no trace|too long"),
    A(f"replay insert_under_reader {LONG}", r"no engine|too long"),
    A(f"check {LONG}", r"no engine|too long"),
    A(f"check sglang --source {LONG}", r"--source|too long"),
    A(f"check ours --json {LONG}", r"--json|too long"),
    A(f"events {LONG}", r"cannot be read|too long"),
    A(f"report -o {LONG}", r"-o "),
    A(f"diff {LONG}", r"revision|too long"),
    A(f"campaign ours -o {LONG}", r"-o "),
]
EVERY = [*COMMANDS, *OPTIONS, *ENGINES, *TRACES, *EVENTS, *LAW, *RELEASES, *NAMES]
