"""How a joint measurement is made: its windows of timings, the parts of a step, and the sensors
read meanwhile.

The jobs that use this (run, balance, probe, independent, layers) decide what is measured, and what
follows from it.
"""
