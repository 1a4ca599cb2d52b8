"""What packed sets say of themselves: one file (packed), several (manifest)."""
