"""The recorded graph: what a tracked tensor remembers of where it came from.

A *node* hangs at each tracked tensor. A *leaf* was made by nobody and retains
its gradient.
"""


class Node:
    """What a tracked tensor came from."""

    __slots__ = ()


class Leaf(Node):
    """A tracked tensor that no operation made: it retains its gradient."""

    __slots__ = ()
