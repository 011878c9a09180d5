"""The one exception of the package.

A message is plain English for the person who reads it: what must be, then what was given, then what to do.

    `loss` must be 'sum' or 'mean'; got 'x'.
    Unknown experiment 'linear/figure1'. Did you mean 'linear/figure-1'?
    runs/a already exists. Choose another folder, or resume it with --resume.
"""

import difflib
from collections.abc import Iterable

LONGEST = 80
"""Characters of a value that a message repeats."""


class SaddlesError(ValueError):
    """Bad input, explained in one or two sentences."""

    @classmethod
    def must_be(cls, name: str, what: str, got: object, hint: str = "") -> "SaddlesError":
        """`name` must be `what`; got `got`, and a hint.

        Args:
            name: the argument as the caller wrote it.
            what: what it must be, for instance "positive" or "'sum' or 'mean'".
            got: the value that was given; its repr is shown.
            hint: a sentence on what to do, without its full stop.
        """
        return cls(f"`{name}` must be {what}; got {shown(got)}.{f' {hint}.' if hint else ''}")

    @classmethod
    def unknown(cls, kind: str, name: str, known: Iterable[str], otherwise: str = "", of: str = "") -> "SaddlesError":
        """Unknown `kind` 'name', with the closest of the known names.

        Args:
            kind: what was looked up, for instance "experiment".
            of: what the name belongs to, if anything.
            otherwise: what to do where nothing is close; default lists the known names.
        """
        names = list(known)
        near = difflib.get_close_matches(name, names, n=1)
        rest = f"Did you mean {near[0]!r}?" if near else otherwise or f"Known: {', '.join(names)}."
        return cls(f"Unknown {kind} {name!r}{f' of {of}' if of else ''}. {rest}")


class MissingPackageError(SaddlesError):
    """A package that this installation of saddles does not have."""


class MissingDataError(SaddlesError):
    """An experiment's data set was not found."""


def shown(value: object) -> str:
    """The repr of a value in one line, cut where it is long."""
    return _cut(" ".join(repr(value).split()))


def first_line(error: BaseException) -> str:
    """What an error of a library says, in one line, cut where it is long."""
    line = next(iter(str(error).splitlines()), "") or "no words"
    # What a terminal would obey is shown as Python writes it.
    return _cut("".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in " ".join(line.split())))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
