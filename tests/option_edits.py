"""Edits of SGLang that show only where a server has an option that the others have not, and harmless ones. Written down
before their first run.

``python tests/option_edits.py STEM RELEASE SEED NAME ...`` prints for each edit, as JSON, the law that drawn runs of
the stem find broken, and after how many seconds.
"""

from __future__ import annotations

import sys

from drawn_edits import report
from host_memory_edits import Edit

from conformance.engines.sglang.kinds import KINDS

REPORTER = "sglang.srt.managers.scheduler_components.metrics_reporter"
POLICY, EVENTS = "sglang.srt.managers.schedule_policy", "sglang.srt.mem_cache.events"
BUGS = {
    # The times of steps are kept nowhere, where a server is to keep them.
    "no_step_times": Edit(
        REPORTER, "SchedulerMetricsReporter._init_metrics", "self.step_time_dict = defaultdict(list)", "pass"
    ),
    # The statistics of a decode step divide by what there is none of.
    "divides_by_requests_that_wait": Edit(
        REPORTER,
        "SchedulerMetricsReporter.report_decode_stats",
        "gap_latency / self.decode_log_interval",
        "gap_latency / len(self.scheduler.waiting_queue)",
    ),
    # The hash of a page is that of the next one.
    "event_of_the_next_page": Edit(
        EVENTS,
        "KVCacheEventRecorder.record_store",
        "event_hash_values[page_index]",
        "event_hash_values[page_index + 1]",
    ),
    # Requests that share a beginning with one that waits are forgotten, and not served later.
    "shares_and_is_forgotten": Edit(
        POLICY,
        "SchedulePolicy._compute_prefix_matches",
        "temporary_deprioritized.add(r.rid)",
        "waiting_queue.remove(r)",
    ),
}
HARMLESS = {
    # Requests that share a beginning with one that waits do not wait for it.
    "nobody_waits_for_a_beginning": Edit(
        POLICY, "SchedulePolicy._compute_prefix_matches", "temporary_deprioritized.add(r.rid)", "pass"
    ),
    # No line of statistics has the time of a step.
    "steps_without_times": Edit(
        REPORTER, "SchedulerMetricsReporter.report_decode_stats", "if RECORD_STEP_TIME:", "if False:"
    ),
}


if __name__ == "__main__":
    stem, release, seed, *names = sys.argv[1:]
    every = {**BUGS, **HARMLESS}
    report(stem, release, {name: every[name] for name in names or every}, KINDS, [int(seed)])
