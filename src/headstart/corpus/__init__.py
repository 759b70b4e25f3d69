"""Raw text → documents: readers, cleaning, deduplication, selection and the datasheet of a corpus."""
