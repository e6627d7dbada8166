"""The servers of SGLang that are drawn: models and launch flags. Nothing is imported here.

Pools are small, so that requests wait, are retracted, and evict each other's prefixes. A text has at most three
quarters of the tokens of its pool: a longer one, accepted where no ``--context-length`` is given, waits for ever.
"""

from __future__ import annotations

import json

from conformance.stems.launches import MODEL, SESSIONS, LaunchChoice, Launches, pair

PLAIN = LaunchChoice("plain")
SIZES = ((1, 16), (1, 24), (4, 8), (2, 12), (1, 40), (4, 12))  # each: tokens of a page, and pages
STATES_A_ROW = 5  # an engine of a model with recurrent layers has no more rows than it has so many states for


def _size(page: int, pages: int) -> LaunchChoice:
    tokens, text = page * pages, page * pages * 3 // 4
    flags = ("--page-size", page, "--max-total-tokens", tokens, "--context-length", text)
    return LaunchChoice(f"{pages} pages of {page}", tuple(map(str, flags)))


def _rows(count: int) -> LaunchChoice:
    flags = ("--max-running-requests", count, "--max-mamba-cache-size", count * STATES_A_ROW)
    return LaunchChoice(f"{count}", (*map(str, flags), "--attention-backend", "triton"))


def _flag(name: str, *flags: str) -> tuple[str, tuple[LaunchChoice, ...]]:
    return name, (PLAIN, LaunchChoice(name, flags))


def _one(name: str, *flags: str) -> LaunchChoice:
    return LaunchChoice(name, flags)


def _set(name: str, **variables: str) -> LaunchChoice:
    return LaunchChoice(name, environment=tuple(variables.items()))


def _sessions(count: int) -> LaunchChoice:
    return LaunchChoice(f"{count} sessions", ("--enable-streaming-session",), sessions=count)


# Windows move in each step of decoding, and not after hundreds of tokens, which no drawn text has.
OFTEN = LaunchChoice("in each step", environment=(("SWA_EVICTION_INTERVAL", "1"),))
# A request is aborted that waits for 24 turns of the loop, or runs for 6.
HURRY = LaunchChoice("short", environment=(("REQ_WAITING_TIMEOUT", "3"), ("REQ_RUNNING_TIMEOUT", "0.75")))
# Drafts of three tokens, of which the first is known. A model with recurrent layers is given none: no pass of a draft
# writes its states here.
DRAFTS = (
    *("--speculative-algorithm", "STANDALONE", "--speculative-num-steps", "2"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3"),
)
# The model with recurrent layers, where requests track their states at each fourth token.
TRACKS = ("--mamba-radix-cache-strategy", "extra_buffer", "--mamba-track-interval", "4")
TRACKED = LaunchChoice("tracked", TRACKS, model="recurrent")
CHUNKED, MIXED, FEW_STATES = "chunked prefill", "mixed batches", "few states"
TRACKED_AHEAD = frozenset({pair(MODEL, "tracked", "overlap", "on")})
# A request that is aborted for its time ends as by a stop token: while a step is in flight.
LATE_AND_AHEAD = frozenset({frozenset({(MODEL, "tracked"), ("overlap", "on"), ("time limits", HURRY.name)})})
MIXED_TRACK = frozenset({pair(MODEL, "tracked", MIXED, MIXED)})
# Batches in which prompts are cut after some tokens, and requests that decode take a part of these.
CUT_AND_MIXED = ((MODEL, "tracked"), (CHUNKED, CHUNKED), (MIXED, MIXED))
# A decode server: a prefill server computes its prompts. It keeps 512 tokens free for each answer if it is not told
# otherwise, which is more than a drawn pool has.
RESERVES, CACHES = "--num-reserved-decode-tokens", "--disaggregation-decode-enable-radix-cache"
COPIES = "--disaggregation-decode-retraction-backup"  # of what a request had when it is taken off its row
DECODE = ("--disaggregation-mode", "decode", RESERVES, "2")
RECEIVING = tuple(
    LaunchChoice(name, (*DECODE, COPIES, "cpu_tensor"), model=model)
    for name, model in (("decode", "full"), ("decode with windows", "windowed"))
)
AT_ONCE = "rows are free at once"
# With this barrier the slots for a prompt are told when the step in flight has ended.
COARSE = (("FORCE_COARSE_WAR_BARRIER", "1"),)
RECEIVES = (
    LaunchChoice("no cache"),
    LaunchChoice("cache", (CACHES,)),
    LaunchChoice("cache, reserves more", (CACHES, RESERVES, "5"), COARSE),
    LaunchChoice(
        "cache, polls seldom", (CACHES, RESERVES, "1", "--disaggregation-decode-polling-interval", "2"), COARSE
    ),
    LaunchChoice("cache, waits for 2 s", (CACHES,), (("DISAGGREGATION_WAITING_TIMEOUT", "2"),)),
    LaunchChoice(AT_ONCE, (CACHES,), (("DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE", "0"),)),
    LaunchChoice("no copies", (COPIES, "none"), COARSE),
)
DECODE_SERVER = "decode server"
# A prefill server: its prompts go to decode servers.
WITH_STATES = "prefill with states"
SENDING = tuple(
    LaunchChoice(name, ("--disaggregation-mode", "prefill"), model=model)
    for name, model in (("prefill", "full"), ("prefill with windows", "windowed"), (WITH_STATES, "recurrent"))
)
HOPES = "--optimistic-prefill-attempts"
SENDS = (
    LaunchChoice("computes when it is asked"),
    LaunchChoice("computes before", (HOPES, "1")),
    LaunchChoice("computes before, twice", (HOPES, "2"), (("DISAGGREGATION_BOOTSTRAP_TIMEOUT", "4"),)),
    LaunchChoice("waits for 2 s", environment=(("DISAGGREGATION_BOOTSTRAP_TIMEOUT", "2"),)),
    LaunchChoice("polls while it waits", environment=(("ENABLE_DISAGG_PREFILL_CONTINUOUS_INPUT_POLLING", "1"),)),
    LaunchChoice("sends no prefix early", environment=(("DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX", "0"),)),
)
PREFILL_SERVER = "prefill server"
# A line of statistics after each decode step, for which the server counts what is free in its pools. By default it does
# so every forty decode steps, and no drawn run is that long. And the server publishes KV events.
REPORTING = ("--decode-log-interval", "1", "--kv-events-config", json.dumps({"publisher": "zmq"}))
EVENTS = LaunchChoice("each step, and events", REPORTING)
REPORTS = ("reports", (PLAIN, EVENTS))
REPORTS_OFTEN = ("reports", (PLAIN, EVENTS, EVENTS))  # also of what the host has
# The plain core of a tree is the one in Rust, where a release has it for the model.
CORES = ("core", (PLAIN, _set("python", UNIFIED_RADIX_TREE_CORE_BACKEND="python")))
CACHING = tuple(one.name for one in RECEIVES if CACHES in one.flags)
# Decode servers with windows and a cache, whose pages have one token: what is not transferred gets slots, too.
WINDOWS_OF_ONE = frozenset(
    frozenset({(MODEL, "decode with windows"), (DECODE_SERVER, name), ("size", _size(*size).name)})
    for name in CACHING
    for size in SIZES
    if size[0] == 1
)
ONE_MORE, DELAYED, BY_TREE = "one more", "prefills delayed", "dfs-weight"
BY_UNCACHED = "shortest-prefill-first"
ORDERS = (BY_TREE, "hrrn", BY_UNCACHED, "lof", "random")
TLRU = {"threshold": 8, "next_prompt_estimate": 2}  # in tokens
# Options that change which slots are taken or freed. A server gets at most one of them, so that they do not hide each
# other. Of what a release reads when one of its modules is imported, a process has one value: that is not here.
RARE = (
    *(_one(f"evicts by {name}", "--radix-eviction-policy", name) for name in ("lfu", "slru", "priority")),
    _one("evicts by tlru", "--radix-eviction-policy", "tlru", "--radix-eviction-policy-config", json.dumps(TLRU)),
    _one("retracts by priority", "--retraction-policy", "priority", "--enable-priority-scheduling"),
    _one("no preemption", "--enable-priority-scheduling", "--disable-priority-preemption"),
    _one("low values first", "--enable-priority-scheduling", "--schedule-low-priority-values-first"),
    _one("preempts for 40 alone", "--enable-priority-scheduling", "--priority-scheduling-preemption-threshold", "20"),
    _one("no priorities", "--abort-on-priority-when-disabled"),
    _one("short prefill", "--max-prefill-tokens", "8"),
    _one("one prefill", "--prefill-max-requests", "1"),
    _one("short queue", "--max-queued-requests", "2"),
    _one("decodes between prefills", "--prefill-decode-interval", "2"),
    _one("waits for free slots", "--min-free-slots-delay", "2"),
    _one(DELAYED, "--enable-prefill-delayer"),
    _one("polls seldom", "--scheduler-recv-interval", "3"),
    _one("one state a path", "--mamba-max-states-per-path", "1"),
    _one("few window slots", "--swa-full-tokens-ratio", "0.5"),
    *(_one(f"order {name}", "--schedule-policy", name) for name in ORDERS),
    _set("never a hit", RADIX_FORCE_MISS="1"),
    _set("decodes without a lock on states", OPT_MAMBA_SKIP_DECODE_LOCK="1"),
    _set("windows of prompts unlocked", OPT_RELEASE_PREFILL_SWA="1"),
    _set("windows kept in the tree", OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS="0"),
    _set("prefixes that wait grow old", ENABLE_WAITING_PREFIX_REFRESH="0"),
    _set("retracts late", RETRACT_DECODE_STEPS="1"),
    _set("one message a poll", SCHEDULER_MAX_RECV_PER_POLL="1"),
    _set("prefill never overlaps prefill", DISABLE_CONSECUTIVE_PREFILL_OVERLAP="1"),
)
RARE_ALONE = (  # on servers without host memory
    _one("no prefix cache", "--disable-radix-cache"),
    _one("sessions in the tree", "--enable-session-radix-cache"),
    _one("replayed states", "--enable-linear-replayssm"),
    _set("no second track", TEST_MAMBA_LAZY_ALLOC_FAIL="1"),
    _set("checks itself in each step", ENABLE_STRICT_MEM_CHECK_DURING_BUSY="1"),
)
RARE_WITH_HOST = (_set("pages stay twice", HICACHE_SKIP_HOST_DUPLICATE_RECLAIM="1"),)


def _one_more(*choices: LaunchChoice) -> tuple[str, tuple[LaunchChoice, ...]]:
    """One of these options, or in a third of the servers none."""
    return ONE_MORE, (*[PLAIN] * (len(choices) // 2), *choices)


PRIORITY = "--enable-priority-scheduling"
# The choices that let requests have priorities.
PRIORITIES = (("priority", "priority"), *((ONE_MORE, one.name) for one in RARE if PRIORITY in one.flags))
# Orders by what the tree has of each text.
BY_PREFIX = (("order", "lpm"), *((ONE_MORE, f"order {name}") for name in (BY_TREE, "hrrn", BY_UNCACHED)))
OTHERS = ("windowed", "full", "sliding", "recurrent")
LAUNCHES = Launches(
    models=(*map(LaunchChoice, OTHERS), TRACKED, *SENDING, *RECEIVING),
    sessions=(PLAIN, _sessions(2), _sessions(1)),
    options=(
        ("size", tuple(_size(*size) for size in SIZES)),
        (DECODE_SERVER, RECEIVES),
        ("rows", tuple(map(_rows, (3, 2, 4)))),
        ("windows move", (PLAIN, OFTEN)),
        ("overlap", (LaunchChoice("off", ("--disable-overlap-schedule",)), LaunchChoice("on"))),
        _flag(CHUNKED, "--chunked-prefill-size", "4"),
        _flag(MIXED, "--enable-mixed-chunk"),
        ("order", (PLAIN, LaunchChoice("lpm", ("--schedule-policy", "lpm")))),
        _flag("priority", "--enable-priority-scheduling"),
        _flag("hopes for short answers", "--schedule-conservativeness", "0.01"),  # so that memory gets short
        ("time limits", (PLAIN, HURRY)),
        _flag("drafts", *DRAFTS),
        _flag(FEW_STATES, "--max-mamba-cache-size", "9"),
        _flag("lazy tracks", "--mamba-radix-cache-strategy", "extra_buffer_lazy"),
        _one_more(*RARE, *RARE_ALONE),
        (PREFILL_SERVER, SENDS),
        REPORTS,
        CORES,
    ),
    never=frozenset(
        {
            # A model whose layers all have a window has one token a page, and its cache keeps no session.
            *(pair(MODEL, "sliding", "size", _size(*size).name) for size in SIZES if size[0] > 1),
            *(pair(MODEL, "sliding", SESSIONS, _sessions(count).name) for count in (1, 2)),
            # Without buffers in which states are tracked, a model with recurrent layers has one token a page, and a
            # step begins when the one before it has ended.
            *(
                pair(MODEL, name, "size", _size(*size).name)
                for name in ("recurrent", WITH_STATES)
                for size in SIZES
                if size[0] > 1
            ),
            *(pair(MODEL, name, "overlap", "on") for name in ("recurrent", WITH_STATES)),
            # A second track that comes and goes needs track buffers of two slots, which overlapping steps have.
            *(pair(MODEL, name, "lazy tracks", "lazy tracks") for name in OTHERS),
            pair("overlap", "off", "lazy tracks", "lazy tracks"),
            *(pair(MODEL, name, "drafts", "drafts") for name in ("recurrent", "tracked")),
            pair("overlap", "off", ONE_MORE, DELAYED),
            # Other servers compute their prompts; a decode server has no sessions here, and no drafts.
            *(
                pair(MODEL, name, DECODE_SERVER, one.name)
                for name in (*OTHERS, TRACKED.name, *(each.name for each in SENDING))
                for one in RECEIVES[1:]
            ),
            *(
                pair(MODEL, name, PREFILL_SERVER, one.name)
                for name in (*OTHERS, TRACKED.name, *(each.name for each in RECEIVING))
                for one in SENDS[1:]
            ),
            *(
                pair(MODEL, one.name, SESSIONS, _sessions(count).name)
                for one in (*RECEIVING, *SENDING)
                for count in (1, 2)
            ),
            *(pair(MODEL, one.name, "drafts", "drafts") for one in (*RECEIVING, *SENDING)),
            # This order asks for a cache.
            *(
                frozenset({(MODEL, one.name), (DECODE_SERVER, kind.name), (ONE_MORE, f"order {BY_UNCACHED}")})
                for one in RECEIVING
                for kind in RECEIVES
                if CACHES not in kind.flags
            ),
            *(pair(MODEL, one.name, "lazy tracks", "lazy tracks") for one in (*RECEIVING, *SENDING)),
        }
    ),
    avoided={
        "session_trim.gap_in_tree": frozenset({pair(MODEL, "sliding", "windows move", OFTEN.name)}),
        "server.tracked_ahead": TRACKED_AHEAD,
        "server.overwritten_track": LATE_AND_AHEAD,
        "server.transfer_under_pass": frozenset(
            frozenset({(MODEL, one.name), (DECODE_SERVER, kind.name), ("overlap", "on")})
            for one in RECEIVING
            for kind in RECEIVES
            if kind.environment != COARSE
        ),
        "server.chunk_inside_page": frozenset(
            frozenset({*CUT_AND_MIXED, ("size", _size(*size).name)}) for size in SIZES if size[0] > 1
        ),
        "server.mixed_track": MIXED_TRACK,
        "server.waiting_copy": frozenset(
            frozenset({(MODEL, model), (SESSIONS, _sessions(count).name), (FEW_STATES, FEW_STATES)})
            for model in ("recurrent", "tracked")
            for count in (1, 2)
        ),
        "server.dfs_turn": frozenset(
            pair(SESSIONS, _sessions(count).name, ONE_MORE, f"order {BY_TREE}") for count in (1, 2)
        ),
        "server.rows_free_at_once": frozenset(pair(MODEL, one.name, DECODE_SERVER, AT_ONCE) for one in RECEIVING),
        "server.unsent_window": WINDOWS_OF_ONE,
        "server.window_is_no_room": WINDOWS_OF_ONE,
        "server.order_of_arrived": frozenset(
            frozenset({(DECODE_SERVER, name), order, priority})
            for name in CACHING
            for order in BY_PREFIX
            for priority in PRIORITIES
        ),
        "server.drafted_turn": frozenset(pair(SESSIONS, _sessions(count).name, "drafts", "drafts") for count in (1, 2)),
    },
)


def _policy(name: str) -> LaunchChoice:
    return LaunchChoice(name, ("--hicache-write-policy", name))


def _storage(policy: str) -> LaunchChoice:
    """A storage behind host memory, and how long requests wait for it."""
    flags = ("--hicache-storage-backend", "sim", "--hicache-storage-backend-extra-config", json.dumps(STORAGE))
    return LaunchChoice(f"storage, {policy}", (*flags, "--hicache-storage-prefetch-policy", policy))


# The storage of a run takes no time, and even one page is fetched from it.
STORAGE = {"prefetch_threshold": 1, "sim_op_latency_us": 0, "sim_write_gbps": 0}
WRITE_POLICIES = ("write_through", "write_back", "write_back", "write_through_selective")
STORAGE_POLICIES = ("wait_complete", "best_effort")
WITH_HOST = ("--enable-hierarchical-cache",)
# Servers with host memory. A prefix of fewer than ten tokens is not loaded from it, so pools are larger than above.
HOST_SIZES = ((1, 32), (4, 12), (2, 20), (4, 9), (1, 48))
HOSTING = Launches(
    models=(
        *(LaunchChoice(model, WITH_HOST) for model in ("full", "windowed", "recurrent")),
        LaunchChoice("tracked", (*TRACKS, *WITH_HOST), model="recurrent"),
    ),
    sessions=(PLAIN,),
    options=(
        ("size", tuple(_size(*size) for size in HOST_SIZES)),
        (
            "host memory",
            tuple(LaunchChoice(ratio, ("--hicache-ratio", ratio)) for ratio in ("2", "0.3", "0.6", "1", "4")),
        ),
        ("storage", (PLAIN, PLAIN, *map(_storage, STORAGE_POLICIES))),
        ("write policy", tuple(map(_policy, WRITE_POLICIES))),
        CORES,
        ("rows", tuple(map(_rows, (3, 2, 4)))),
        ("windows move", (PLAIN, OFTEN)),
        ("overlap", (LaunchChoice("off", ("--disable-overlap-schedule",)), LaunchChoice("on"))),
        _flag(CHUNKED, "--chunked-prefill-size", "8"),
        _flag(MIXED, "--enable-mixed-chunk"),
        ("order", (PLAIN, LaunchChoice("lpm", ("--schedule-policy", "lpm")))),
        _flag("priority", "--enable-priority-scheduling"),
        _flag("hopes for short answers", "--schedule-conservativeness", "0.01"),
        ("time limits", (PLAIN, HURRY)),
        _one_more(*RARE, *RARE_WITH_HOST),
        REPORTS_OFTEN,
    ),
    never=frozenset(
        {
            *(pair(MODEL, "recurrent", "size", _size(*size).name) for size in HOST_SIZES if size[0] > 1),
            pair(MODEL, "recurrent", "overlap", "on"),
            pair("overlap", "off", ONE_MORE, DELAYED),
        }
    ),
    avoided={
        "server.tracked_ahead": TRACKED_AHEAD,
        "server.overwritten_track": LATE_AND_AHEAD,
        "server.mixed_track": MIXED_TRACK,
        "host_server.slow_storage": frozenset(
            pair("write policy", "write_back", "storage", _storage(policy).name) for policy in STORAGE_POLICIES
        ),
        "host_server.unfenced_copy": frozenset({frozenset({("overlap", "on")})}),
        "host_server.window_is_said": frozenset(
            {frozenset({(MODEL, "windowed"), ("write policy", "write_back"), ("reports", EVENTS.name)})}
        ),
        "host_server.refused_load": frozenset(
            pair(MODEL, name, "write policy", "write_back") for name in ("recurrent", "tracked")
        ),
        "host_server.held_states": frozenset(pair(MODEL, name, CHUNKED, CHUNKED) for name in ("recurrent", "tracked")),
    },
)
