"""Engines that can be driven beside the law, each a plug-in; ``protocol`` says what one must answer."""
