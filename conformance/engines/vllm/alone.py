"""Runs scripts on a release alone: ``python -m conformance.engines.vllm.alone RELEASE SCRIPT [SCRIPT ...]``.

See ``conformance.engines.scripts_alone``. Where vLLM itself is installed, ``python SCRIPT`` does it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from conformance.engines import scripts_alone
from conformance.engines.vllm.download import WHEELS
from conformance.engines.vllm.release import load

SCRIPTS = Path(__file__).with_name("scripts")


def main(release: str, scripts: list[str]) -> int:
    """See ``scripts_alone.main``."""
    return scripts_alone.main(lambda name: load(WHEELS.release(name), name), release, scripts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
