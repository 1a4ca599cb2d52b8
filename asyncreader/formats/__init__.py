"""What datasets say of themselves: one file (packed), several (manifest)."""
