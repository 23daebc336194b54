"""How others score maps: what their official code computes, in pure functions, one file a protocol.

The functions take maps on a grid of the caller's choice. What the official code does not define is NaN here, never 0.
"""
