"""Scripts of decode servers of SGLang end where a prompt may be written under a step in flight, and else go on."""

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


def test_each_step_of_a_prefill_server_has_words() -> None:
    assert PREFILLS.keys() == {*get_args(TransferStep)}
    assert SENDINGS.keys() == {*get_args(SendStep)}
    said = [call({"op": "transfer", "request": 7, "step": step}) for step in PREFILLS]
    said += [call({"op": "send", "request": 7, "step": step}) for step in SENDINGS]
    assert len({*said}) == len(said)
    assert all(one.startswith("# ") and "request 7" in one for one in said)
