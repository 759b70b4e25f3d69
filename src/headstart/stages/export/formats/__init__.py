"""The export formats, one file each; the registry names them."""
