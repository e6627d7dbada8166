"""Settings of every test: the same examples in every run, unless ``HYPOTHESIS_PROFILE=soak`` asks for many new ones."""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it once, when it is first imported
torch.set_num_threads(1)  # the suite runs in parallel processes
settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "soak", max_examples=5_000, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
