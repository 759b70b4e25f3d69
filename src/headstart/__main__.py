"""`python -m headstart`."""

from headstart.cli import main

main()
