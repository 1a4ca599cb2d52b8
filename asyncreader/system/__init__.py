"""What the operating system gives: memory, cores, signals; and small things that all layers use."""
