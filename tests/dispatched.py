"""The base of modes that see each operation on tensors.

torch wraps the handler of a mode so that its compiler leaves it alone, and imports the compiler at the first operation,
which takes several seconds. Nothing is compiled where these modes are on.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A subclass has the handler, ``__torch_dispatch__``."""

    def __init_subclass__(cls) -> None:  # torch's has no types, so that each subclass would be an error
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """``False``: the handler is called as it is, and the compiler is not imported."""
        return False
