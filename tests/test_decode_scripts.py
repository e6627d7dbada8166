"""Scripts of decode servers of SGLang end where a prompt may be written under a step in flight, and where a slot of a
window is read that nobody has written; and else go on.
"""

from __future__ import annotations

from typing import get_args

import forked
import pytest
from driven import NEWEST, have

from conformance.engines.sglang.server.http import PREFILLS, SENDINGS, call
from conformance.stems.server.protocol import SendStep, TransferStep

FLAGS = (
    "--disaggregation-mode decode --num-reserved-decode-tokens 1 --disaggregation-decode-retraction-backup cpu_tensor "
    "--page-size 1 --max-total-tokens 16 --context-length 18 --max-running-requests 2 --attention-backend triton"
)
CACHE, NORMAL = "--disaggregation-decode-enable-radix-cache", "--disable-overlap-schedule"
REPAIR = 'cause_files.load("transfer_under_pass").apply()'
# The scheduler waits for the step in flight before it tells the slots to the prefill server.
WAITS = """
from sglang.srt.disaggregation.decode import DecodePreallocQueue

real = DecodePreallocQueue._send_kv_metadata

def waits(self, *args, **given):
    self.scheduler.forward_stream.synchronize()
    real(self, *args, **given)

DecodePreallocQueue._send_kv_metadata = waits
"""
# The second request needs the slots of the first one, which a stop token ends at position 7 of its text.
PROGRAM = """
from conformance.engines.sglang.server.scripted import Server
from conformance.traces import cause_files

server = Server({release!r}, "full", {flags!r}.split())
{repair}
server.generate(request=0, tokens=[*range(1, 7)], longest=5, stop=7)
server.transfer(request=0, step="registers")
server.steps(times=2)
server.transfer(request=0, step="completes")
server.generate(request=1, tokens=[*range(11, 20)], longest=3)
server.transfer(request=1, step="registers")
server.steps(times=5)
server.transfer(request=1, step="completes")
server.steps(times=9)
print("left:", [*server.engine.requests])
"""

WINDOWED = (
    "--disaggregation-mode decode --num-reserved-decode-tokens 1 --disaggregation-decode-retraction-backup cpu_tensor "
    "--page-size 4 --max-total-tokens 28 --context-length 24 --max-running-requests 2 --attention-backend triton "
    f"{CACHE} {NORMAL}"
)
UNSENT_REPAIR = 'cause_files.load("unsent_window").apply()'
# The first page of the window is not told to the prefill server.
SENT_SHORT = """
from sglang.srt.disaggregation.decode import DecodePreallocQueue

real = DecodePreallocQueue._send_kv_metadata

def short(self, request, slots, page_size, states, **given):
    real(self, request, slots, page_size, [pages[1:] for pages in states], **given)

DecodePreallocQueue._send_kv_metadata = short
"""
# A request that gave its row up comes back without its window.
NOT_RESTORED = """
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

real = SWAKVPool.load_cpu_copy
SWAKVPool.load_cpu_copy = lambda self, copy, *args, **given: real(self, {**copy, "swa": None}, *args, **given)
"""
BEGIN = """
from conformance.engines.sglang.server.scripted import Server
from conformance.traces import cause_files

server = Server({release!r}, "windowed", {flags!r}.split())
{edit}
"""
# The second prompt begins as the first one, and its window reaches into the first page.
TWO_PROMPTS = (
    BEGIN
    + """
for request, tokens in enumerate(([*range(1, {length} + 1)], [1, 2, 3, 4, 201, 202])):
    server.generate(request=request, tokens=tokens, longest=1 + request)
    server.transfer(request=request, step="registers")
    server.steps()
    server.transfer(request=request, step="completes")
    server.steps(times=4)
print("left:", [*server.engine.requests])
"""
)
# There is no room for both answers, so that one request gives its row up.
COMES_BACK = (
    BEGIN
    + """
for request, tokens in enumerate(([*range(1, 7)], [11])):
    server.generate(request=request, tokens=tokens, longest=12 - request)
    server.transfer(request=request, step="registers")
server.steps(times=2)
for request in (0, 1):
    server.transfer(request=request, step="completes")
server.steps(times=25)
print("left:", [*server.engine.requests])
"""
)


@pytest.mark.engine
@pytest.mark.parametrize("cache", [CACHE, ""])
def test_a_prompt_may_not_be_written_where_a_step_in_flight_writes(cache: str) -> None:
    have(NEWEST)
    as_it_is, *lawful = (
        forked.run(NEWEST, PROGRAM.format(release=NEWEST, flags=f"{FLAGS} {cache} {more}", repair=repair), [])
        for more, repair in (("", ""), ("", REPAIR), ("", WAITS), (NORMAL, ""))
    )
    assert as_it_is.returncode != 0
    assert "into KV slot 8 now; the step in flight still writes a token of request 0 there" in as_it_is.stderr
    for ran in lawful:
        assert (ran.returncode, ran.stdout) == (0, "left: []\n"), ran.stderr


@pytest.mark.engine
def test_a_window_that_nobody_has_written_may_not_be_read() -> None:
    """Of a prompt of 8 tokens the first page is not sent. One of 9 tokens has its whole tail."""
    have(NEWEST)
    as_it_is, *lawful = (
        forked.run(NEWEST, TWO_PROMPTS.format(release=NEWEST, flags=WINDOWED, edit=edit, length=length), [])
        for edit, length in (("", 8), (UNSENT_REPAIR, 8), ("", 9))
    )
    wrong = "request 1 goes on after 6 tokens of its text; the KV cache in SWA slot 6, of token 2, was never computed"
    assert as_it_is.returncode != 0
    assert as_it_is.stderr.endswith(f"AssertionError: {wrong}\n")
    assert "is for token 2 of request 0" in as_it_is.stderr
    for ran in lawful:
        assert (ran.returncode, ran.stdout) == (0, "left: []\n"), ran.stderr


@pytest.mark.engine
def test_a_window_comes_as_it_is_told_and_comes_back_as_it_was() -> None:
    have(NEWEST)
    as_it_is, *wrong = (
        forked.run(NEWEST, COMES_BACK.format(release=NEWEST, flags=WINDOWED, edit=edit), [])
        for edit in ("", SENT_SHORT, NOT_RESTORED)
    )
    assert (as_it_is.returncode, as_it_is.stdout) == (0, "left: []\n"), as_it_is.stderr
    said = (
        "request 0 goes on after 6 tokens of its text; the KV cache in SWA slot 6, of token 2, was never computed",
        "request 0 goes on after 12 tokens of its text; the KV cache in SWA slot 8, of token 8, is of token 4 of its",
    )
    for ran, what in zip(wrong, said, strict=True):
        assert ran.returncode != 0
        assert what in ran.stderr


def test_each_step_of_a_prefill_server_has_words() -> None:
    assert PREFILLS.keys() == {*get_args(TransferStep)}
    assert SENDINGS.keys() == {*get_args(SendStep)}
    said = [call({"op": "transfer", "request": 7, "step": step}) for step in PREFILLS]
    said += [call({"op": "send", "request": 7, "step": step}) for step in SENDINGS]
    assert len({*said}) == len(said)
    assert all(one.startswith("# ") and "request 7" in one for one in said)
