"""One stored sample into one row: decode, crop, resize, flip, cast, normalise."""
