"""A model's graph as a pipeline of micro-batches over several devices: cut, placed, run, timed.

`calls` and `blocks` read the graph; `section` runs a part of it with the model's own layers;
`update` applies gradients where the variables are; `cut_model` has both on their devices;
`pipeline` makes a `step`, at the `pace` of simulated devices; a worker holds a `session`.
"""
