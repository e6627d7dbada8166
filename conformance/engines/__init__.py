"""The engines that can be driven beside the law, each a plug-in. ``protocol`` says what an engine must implement."""
