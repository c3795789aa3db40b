"""The commands: parse, call a stage, render, exit. The only place that prints or exits."""
