"""The law of KV-cache bookkeeping as pure state machines; see ``spec.logic`` for how a law is read."""
