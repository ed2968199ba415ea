"""The two exceptions whose message a person reads; everything else is a bug and keeps its traceback."""


class HybridError(Exception):
    """A failure that a person can mend. The message says what happened, where, and what to do."""

    exit_code = 1


class InputError(HybridError):
    """The command line, or a file it names, is not usable as it stands."""

    exit_code = 2
