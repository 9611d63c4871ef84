"""Makes a draft model for a target: fewer of its layers, trained on its own answers."""
