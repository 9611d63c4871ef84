"""The one exception that a command raises for a fault its user can understand."""


class CommandError(Exception):
    """The command failed; the text is all that the user sees."""
