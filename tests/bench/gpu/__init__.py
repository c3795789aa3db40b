"""`scripts/bench gpu`: what can be known on a machine with GPUs only, in steps that stand each by itself."""
