"""The virtual machine: its instruction set, its encoder, and interpreters of encoded programs."""
