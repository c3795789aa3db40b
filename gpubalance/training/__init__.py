"""The user's door: a Keras model trained with a split, by Keras' own fit."""
