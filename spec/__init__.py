"""The law of KV-cache bookkeeping as pure state machines; ``spec.logic`` explains how to read them."""
