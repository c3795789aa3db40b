"""The user's door: a Keras model trained with a split, by Keras' own fit.

The one room that leans on Keras' insides, each lean checked. The measured step is engine/'s, not this one's.
"""
