"""Models, set-up and the synchronous step in real TensorFlow, paced for simulated devices.

It runs in worker processes and in the user's own training, and knows nothing of commands and jobs.
From results/ and planning/ it takes records and formulas.
"""
