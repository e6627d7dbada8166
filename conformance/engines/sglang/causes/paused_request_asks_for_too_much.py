"""A request that gave its row up in a pause asks for room for what is left of its answer, not for all of it again."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.disaggregation.decode import CLIP_MAX_NEW_TOKEN, DecodePreallocQueue

    real = DecodePreallocQueue._required_admission_tokens

    def _required_admission_tokens(self: Any, req: Any, allocated: int, prefix: int, retractable: int) -> int:
        longest = req.sampling_params.max_new_tokens
        left = longest - len(req.output_ids)
        answered = min(longest, CLIP_MAX_NEW_TOKEN) - min(left, CLIP_MAX_NEW_TOKEN)
        return int(real(self, req, allocated, prefix, retractable + answered))

    DecodePreallocQueue._required_admission_tokens = _required_admission_tokens
