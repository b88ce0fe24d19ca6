"""The document: a pipeline's YAML, typed, checked and explained."""
