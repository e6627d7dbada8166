"""KV events of an engine, judged by the law ``spec.kv_events``: in a run, or in a recorded stream."""
