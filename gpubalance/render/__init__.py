"""A result → text. Pure: nothing is printed here."""
