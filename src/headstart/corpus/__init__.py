"""Raw text in: readers that lose nothing in silence, receipts, and the split by hash."""
