"""Adapters: what a route does to a message, step by step.

`contract` is what people write, `registry` finds them by name.
"""
