"""Who fills which buffer, and when: slots, workers, and what they do with a batch."""
