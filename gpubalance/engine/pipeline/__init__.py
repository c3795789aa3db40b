"""A model's graph as a pipeline of micro-batches over several devices: cut, placed, run, timed.

`calls` and `blocks` read the graph; `section` runs a part of it with the model's own layers; `update` applies gradients
where the variables are; `clock`, `mailbox`, `step` and `pipeline` make a step; a worker holds a `session`.
"""
