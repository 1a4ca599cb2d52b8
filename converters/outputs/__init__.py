"""Where samples go: files and shards, written whole or not at all."""
