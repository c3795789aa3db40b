"""`python -m gpubalance`."""

from gpubalance.cli.app import main

main()
