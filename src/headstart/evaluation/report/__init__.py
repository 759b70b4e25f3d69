"""The page of errors: scores, calibration, slices, the worst errors and labels to check."""
