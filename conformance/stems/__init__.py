"""The stems: a room each, with all that is known of the stem in ``conformance``, and what several of them share."""
