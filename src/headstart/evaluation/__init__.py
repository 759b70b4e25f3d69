"""What a score is worth: metrics, baselines, significance, and what it cost."""
