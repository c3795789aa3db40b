"""`doctor`: checks the machine, and says what mends it."""
