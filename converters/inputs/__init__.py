"""Where samples come from: folders, labels CSVs, object stores, datasets."""
