"""Worker processes and parties of them: start them, ask them, hold them to deadlines, end them.

A job holds a `Party`, and never a process. The parent imports no TensorFlow; what a worker does with its devices is in
engine/.
"""
