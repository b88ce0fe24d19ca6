"""The `tupletree` command: a module per subcommand."""
