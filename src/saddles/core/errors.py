"""The one exception of the package."""


class SaddlesError(ValueError):
    """Bad input, told in one sentence: what came, what was expected, what to try."""

    @classmethod
    def about(cls, came: str, expected: str, hint: str) -> "SaddlesError":
        """Build the sentence from its three parts."""
        return cls(f"{came}, but {expected}; {hint}.")


class MissingDataError(SaddlesError):
    """An experiment's data set was not found."""
