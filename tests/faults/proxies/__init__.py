"""A TCP proxy that knows where messages begin and end, and does something to the k-th of them.

`proxy` moves messages and injects faults; a framing module per protocol says how long a message is. A framing knows
both directions of one connection, because what a reply is made of may depend on what was asked.
"""
