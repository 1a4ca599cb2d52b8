"""What the operating system gives: memory, cores, signals."""
