"""`python -m qafel`."""

from qafel.cli import main

main()
