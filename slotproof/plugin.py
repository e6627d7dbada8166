"""What the code of an engine of your own imports: ``from slotproof.plugin import SimplePlugin, PoolSnapshot``.

The names are those of the two modules that ``conformance.engines`` has for engines: ``protocol`` says what an engine must
implement, and ``registry`` how it is registered. This module has the same place in a checkout and in an installed
package; the other two do not (docs/adr/0011-names-in-site-packages.md).
"""

from __future__ import annotations

from conformance.engines import protocol
from conformance.engines.protocol import *  # noqa: F403 (what the protocol names is what engines use)
from conformance.engines.registry import Loaded, Plugin, SimplePlugin, load

OF_PROTOCOL = [name for name, value in vars(protocol).items() if getattr(value, "__module__", "") == protocol.__name__]
__all__ = ["Json", "Loaded", "Plugin", "SimplePlugin", "load", *OF_PROTOCOL]
