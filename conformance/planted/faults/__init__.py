"""Known bugs, which proofs and runs must catch.

Each bug stands in the room of its stem (``faults.py``) in two forms: as a wrong transition of the law, which the
provers must refute, and as a faulty part of our implementation, which drawn runs must find without a hint.
"""
