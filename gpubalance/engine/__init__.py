"""Models, set-up and the synchronous step in real TensorFlow, paced for simulated devices.

It runs in worker processes and the user's own training, and knows nothing of commands, results or
plans.
"""
