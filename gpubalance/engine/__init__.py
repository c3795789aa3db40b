"""The real thing: models and the synchronous step, in TensorFlow. Runs in a child process only."""
