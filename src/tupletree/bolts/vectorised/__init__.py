"""The library of bolts without Python per tuple: what `tupletree.bolts` exports."""
