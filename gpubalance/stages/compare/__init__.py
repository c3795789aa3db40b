"""`compare`: results from files, side by side."""
