"""The commands, one file each: parse options into a request, call a job, render its result, exit.

The only package that prints or ends the process. What a command does belongs in jobs/, how it looks
in render/.
"""
