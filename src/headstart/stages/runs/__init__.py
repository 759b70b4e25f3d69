"""What every verb shares: the run folder, its meter, its card, its environment."""
