"""A small model inside a large one: the same function at the large one's full cost.

`widening` derives it, `layout` says where each weight lies, `wide_weights` makes the tensors one
by one, and `wide_directory` writes them. All but the last are functions of a configuration and a
reader of tensors: an engine can make a layer where it needs it, without a file of the target's.
"""
