"""The processes of a server: a supervisor, the workers, and their connections."""
