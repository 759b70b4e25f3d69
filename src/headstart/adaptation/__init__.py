"""Ways to turn a pre-trained model into one for a task, one file each."""

import logging

# peft imports bitsandbytes where it is installed, which then asks for a kernel from the hub that nothing here uses.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
