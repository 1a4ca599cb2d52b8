"""Augmentation: operations on one picture, drawn at random for each sample."""
