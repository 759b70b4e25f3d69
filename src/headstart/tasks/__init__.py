"""Task kinds, one file each, and the readers of labeled rows and checkpoints."""
