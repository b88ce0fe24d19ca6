"""What the Spark runtime puts on disk and on the wire, and how it is read back. Nothing here decides anything."""
