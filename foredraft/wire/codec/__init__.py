"""Between protobuf messages and plain values, one module per proto file.

Decoders trust nothing: columns must add up, ids and enumerations must be in range. What can be
blamed on one sequence is returned as an error of that sequence; only a message that cannot be
read at all raises `BadMessage`.
"""
