"""`python -m saddles` is the `saddles` command."""

from saddles.cli import main

main()
