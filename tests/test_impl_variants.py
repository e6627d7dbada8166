"""Triton compiles each kernel of ours a known number of times, whatever the calls are: no call later waits for it.

What Triton would compile is counted without a GPU, by the keys under which it looks for a compiled kernel, for a GPU of
compute capability 9.0. Nothing is compiled or executed, so what the pools hand out means nothing, and is never read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from driven import SOAK

pytest.importorskip("triton")

COUNT = """
import json, random, sys
from types import SimpleNamespace

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from impl import kernels
from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.lock_ref import LockTree
from impl.swa_mapping import SWATokenToKVPoolAllocator

seen = set()
driver.set_active(SimpleNamespace(
    get_current_device=lambda: 0, get_current_stream=lambda _: 0,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
))
knobs.runtime.jit_cache_hook = lambda *, fn, key, **_: seen.add((fn.name, str(key))) or True
if "specialized" in sys.argv:
    specializing = triton.jit
    triton.jit = lambda kernel, **_: specializing(kernel)

kind, page, draws, done = sys.argv[1], int(sys.argv[2]), random.Random(7), set()
DTYPES = (torch.int64, torch.int32)


def pools():
    size, common = 400_000 // page * page, (torch.bfloat16, "cpu", None, False)
    if kind == "two":
        made = SWATokenToKVPoolAllocator(size, size, page, *common, backend="triton")
        each = [made.full_attn_allocator, made.swa_attn_allocator]
    else:
        made = (TokenToKVPoolAllocator(size, *common, backend="triton") if page == 1
                else PagedTokenToKVPoolAllocator(size, page, *common, backend="triton"))
        each = [made]
    for pool in [made, *each]:
        pool._check_content = False
    for pool in each:
        pool.fused = True
    made.clear()
    return made


def a_call(made, rows):
    # One call on some rows, each of them the number of its tokens. Slots are never looked at: any tensor will do.
    lens, last = draws.choice(DTYPES), draws.choice(DTYPES)
    action = draws.choice(["extend", "decode", "free", "free", "group", "window", "tail"])
    some = [rows.pop(draws.randrange(len(rows))) for _ in range(draws.randint(0, min(len(rows), 60)))]
    slots = lambda n: torch.zeros(n + 3, dtype=last)[draws.randint(0, 3):][:n]
    if action in ("extend", "tail"):
        some += [0] * draws.choice([0, 1, 1, 2, 7, 100])
        some = [0] if action == "tail" else some
        to = [n + draws.choice([0, 1, 5, 63, 64, 200, 1500]) for n in some]
        if action == "tail" and (kind == "one" or not to[0]):
            return
        before, after = torch.tensor(some, dtype=torch.int64), torch.tensor(to, dtype=torch.int64)
        args = before.to(lens), before, after.to(lens), after, slots(len(some)), sum(to) - sum(some)
        if action == "tail":
            got = made.alloc_extend_swa_tail(*args, draws.randint(0, to[0]))
        else:
            got = made.alloc_extend(*args)
        some = some if got is None else to
        rows += [n for n in some if n] if action == "extend" else []
        action += "" if got is not None and len(got) else " not done"
        if "tail" in action and got is not None:
            made.full_attn_allocator.clear(), made.swa_attn_allocator.clear(), rows.clear()
    elif action == "decode":
        after = torch.tensor([n + 1 for n in some], dtype=torch.int64)
        got = made.alloc_decode(after.to(lens), after, slots(len(some)))
        rows += some if got is None else [n + 1 for n in some]
        action += "" if got is not None and len(got) else " not done"
    elif action in ("free", "group") and some:
        if action == "group":
            made.free_group_begin()
        tails = [draws.choice([0, n, n]) for n in some]
        if kind == "two":  # so many SWA pages come back; what is not given back here is given back below
            pages = lambda n: -(-n // page)
            left = sum(pages(n) - (pages(n) - (n - t) // page if t else 0) for n, t in zip(some, tails))
            made.free(slots(sum(some)), row_lens=some, swa_lens=tails)
            if left:
                made.swa_attn_allocator.put(torch.zeros(left, dtype=torch.int64))
        else:
            made.free(slots(sum(some)), row_lens=some)
        if action == "group":
            made.free_group_end()
    elif action == "window" and some and kind == "two":
        made.free_swa(slots(sum(some)), row_lens=some)
        made.swa_attn_allocator.take(made.swa_attn_allocator.peek(sum(-(-n // page) for n in some)))
        rows += some
    else:
        return
    done.add(action)


def lock(tree, leaves):
    handles = tree.acquire([draws.choice(leaves) for _ in range(draws.randint(1, 40))])
    if draws.random() < 0.5:
        tree.release_swa(draws.sample(handles, draws.randint(1, len(handles))), with_state=draws.random() < 0.5)
    tree.release(handles)


if kind == "locks":
    tree, leaves, under = LockTree(400, window=8, stateful=True, backend="triton"), [], 0
    tree._check_content = False
    for depth in range(1, 401):
        under = tree.add_leaf(under, depth, mamba=depth % 2 == 0)
        leaves.append(under)
    small = LockTree(8, window=8, stateful=True, backend="triton")
    small._check_content = False
    node = small.add_leaf(0, 4)
    tree.warm_up(400)
    warm = set(seen)
    for _ in range(500):
        lock(tree, leaves)
        lock(small, [node])
    done = {"lock"}
else:
    made, rows = pools(), []
    made.warm_up()
    warm = set(seen)
    for _ in range(int(sys.argv[3])):
        a_call(made, rows)
print(json.dumps({"warm": len(warm), "later": sorted(name for name, _ in seen - warm), "done": sorted(done)}))
"""


def counted(*arguments: str) -> dict[str, object]:
    env = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": "."}
    command = [sys.executable, "-W", "ignore", "-c", COUNT, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


# How many kernels warm_up compiles, by pools and page size. More would make the start of an engine slower.
WARM = {("one", 1): 16, ("one", 64): 16, ("two", 1): 27, ("two", 64): 21, ("locks", 0): 32}


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(("kind", "page"), WARM)
def test_calls_after_warm_up_compile_nothing(kind: str, page: int) -> None:
    found = counted(kind, str(page), "1000" if SOAK else "300")
    assert found["later"] == []
    assert found["warm"] == WARM[kind, page]
    every = {"extend", "decode", "free", "group"} | ({"window", "tail"} if kind == "two" else set())
    assert {*map(str, found["done"])} >= (every if page else {"lock"})  # type: ignore[call-overload]


@pytest.mark.soak
def test_what_triton_compiles_for_the_place_of_a_slice_is_noticed() -> None:
    assert counted("two", "64", "1000", "specialized")["later"]
