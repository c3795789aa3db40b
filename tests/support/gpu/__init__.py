"""`scripts/bench gpu`: finds what only a machine with GPUs can show, in independent steps."""
