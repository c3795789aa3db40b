"""Starts worker processes, in groups or alone, asks them, enforces deadlines, and ends them.

A job holds a `WorkerGroup`, never a process. The parent imports no TensorFlow; what a worker does
with its devices is in engine/. From a job's side down to there:

    group       the workers of a measurement
    worker      one model: what it is asked and replies
    process     its process, here or on another host; `ranks`, if each device has one
    agent       the program on that host that starts the process and ends it (see `programs`)
    serve       the program of the process, which calls the engine

Beside them `hosts` runs programs that are no workers on other hosts: scripts, gpubalance itself,
and `reaching`, which tries whether workers would reach each other.
"""
