"""Worker processes: start them, talk to them, hold them to deadlines, end them.

No TensorFlow is imported by the parent; what a worker does with its devices is in engine/.
"""
