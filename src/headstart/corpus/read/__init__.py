"""Read files of any supported format into documents."""
