"""The law held against running code: the same calls to the spec and to a subject, compared after every step."""
