"""Child processes: start, talk, deadline, end."""
