"""`python -m titans.cli`, for launchers such as torchrun."""

from titans.cli import main

main()
