"""Adaptation methods, which turn a pre-trained model into one for a task; one file each."""

import logging

# peft imports bitsandbytes if it is installed, which then looks for a kernel on the hub that Headstart does not use.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
