"""The model and its memory, shared by both workers. Torch lives here."""
