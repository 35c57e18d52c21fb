"""`python -m outlast` is the command `outlast`."""

from _outlast_command import main

main()
