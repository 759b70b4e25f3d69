"""Ways to turn a pre-trained model into one for a task, one file each."""
