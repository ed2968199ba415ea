"""Exceptions whose message is printed without a traceback; any other exception is a bug."""


class HybridError(Exception):
    """A failure that the user can fix. The message names the fault, its place and the fix; exit code 1."""

    exit_code = 1


class InputError(HybridError):
    """Unusable arguments or input files; exit code 2."""

    exit_code = 2


class DamageError(InputError):
    """A file that was complete before, and is missing, changed or unreadable now; exit code 1."""

    exit_code = 1
