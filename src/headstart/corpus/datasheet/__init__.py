"""The datasheet of a corpus, and commands that inspect one."""
