"""What can go wrong, said with the place, the value and the remedy."""


class LabError(Exception):
    """The lab could not do what it was asked; the text is meant for the user."""


class GuestGone(LabError):
    """The guest ended, or its control channel closed, before it answered."""


class GuestTimeout(LabError):
    """The guest is there but did not answer, or an event did not come, in time."""


class Refused(LabError):
    """The guest answered that an operation failed."""


class CommandFailed(LabError):
    """A command in the guest ended with a status other than 0."""
