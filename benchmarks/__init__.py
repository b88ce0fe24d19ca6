"""Benchmarks: ratios against peers measured in one run (`python -m benchmarks`, from the repository's root).

`corpus` makes the input, `word_count` holds the per-tuple functions that every job shares, `baseline_*` are the peers,
`tupletree_jobs` is what they judge, `job` is the entry of a job's own process, `harness` starts such processes and
watches their memory, `rows` turns them into rows, `report` prints the table. Nothing here is imported by `tupletree`.
"""
