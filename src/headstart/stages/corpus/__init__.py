"""`headstart corpus`: raw text to a cleaned, documented corpus."""
