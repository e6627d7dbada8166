"""SGLang's real ``Scheduler`` on a CPU, as an engine of the room ``server``."""
