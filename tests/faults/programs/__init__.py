"""Programs that end, are killed, run out of disk or run for long, in processes of their own."""
