"""What each command does, composed from the rooms below; run, plan, report and devices are one file each.

No TensorFlow here: a job drives worker processes. It prints nothing: it tells events, and returns a record.
"""
