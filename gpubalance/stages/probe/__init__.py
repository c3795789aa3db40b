"""`probe`: what each device can do alone, and how large a batch it takes."""
