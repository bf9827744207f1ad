"""Errors of the lab; each message names the object, the value found and the remedy."""


class LabError(Exception):
    """The lab could not do what was requested; the message is meant for the user."""


class GuestGone(LabError):
    """The guest exited, or its control channel closed, before it answered."""


class GuestTimeout(LabError):
    """The guest runs but did not answer, or an event did not arrive, in time."""


class Refused(LabError):
    """The guest's control program reported that an operation failed."""


class CommandFailed(LabError):
    """A command in the guest exited with a status other than 0."""
