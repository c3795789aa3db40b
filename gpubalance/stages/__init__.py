"""What a command does, each composing the floors below. No TensorFlow: a stage drives child processes."""
