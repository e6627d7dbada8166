"""A subject by name: ``ours``, or ``sglang`` by release or by source folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from conformance.machine import Json
from conformance.subjects import ours
from conformance.subjects.errors import SubjectError

SUBJECTS = ("ours", "sglang")
RELEASES = ("0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.14")


@dataclass(frozen=True)
class Loaded:
    """A subject that can be built at any size: for each stem a function from a configuration to a subject."""

    name: str
    release: str | None
    makers: dict[str, Callable[[Json], Any]]


def load(name: str, release: str | None = None, source: Path | None = None, device: str = "cpu") -> Loaded:
    """Loads a subject; ``SubjectError`` says in one line what is wrong with the name, release, folder or device."""
    if name not in SUBJECTS:
        raise SubjectError(f"no subject {name!r}: there are {' and '.join(SUBJECTS)}")
    _check_device(device)
    if name == "ours":
        if release or source:
            raise SubjectError("--release and --source name an SGLang; the subject ours has neither")
        return Loaded("ours", None, {stem: partial(make, device=device) for stem, make in ours.MAKERS.items()})
    return _sglang(release, source, device)


def _sglang(release: str | None, source: Path | None, device: str) -> Loaded:
    from conformance.subjects import foreign, releases, sglang

    if (release is None) == (source is None):
        raise SubjectError("sglang needs either --release VERSION or --source FOLDER")
    root = releases.release(release) if release else releases.from_source(Path(str(source)))
    label = release or str(source)
    return Loaded("sglang", label, foreign.makers(sglang.load(root, label), label, device))


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise SubjectError(f"no device {device!r}: there are cpu and cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise SubjectError("device cuda: this machine has no CUDA device")
