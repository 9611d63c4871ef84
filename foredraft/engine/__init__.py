"""The model and its memory, shared by both workers. The only room that imports torch."""
