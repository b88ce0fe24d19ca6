"""The adapters that come with Tupletree, a module for each idea. `registry` has their names."""
