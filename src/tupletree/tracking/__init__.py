"""Pure state machines that decide the outcome of every message.

`acker` and `ledger` say when a tuple tree is complete, `pending` keeps every message until it is acked or dead,
`retry` says when to try again, `outcomes` are the verdicts. Nothing here reads a clock, draws randomness of its own,
logs, or does input and output: time and randomness come in as arguments.
"""
