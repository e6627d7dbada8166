"""The one exception a user sees when a subject cannot be brought up."""


class SubjectError(Exception):
    """A subject cannot be found, downloaded or loaded; the message is one line that says why."""
