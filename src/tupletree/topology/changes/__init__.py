"""How a topology has changed: what is kept of it, how two of them differ, and what that means for what is stored."""
