"""The real thing: models, set-up and the synchronous step in TensorFlow, paced for simulated devices.

It runs in worker processes only, and knows nothing of commands, results or plans.
"""
