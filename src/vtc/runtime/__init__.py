"""What runs after compilation: executables, CUDA graphs, checks of what a call brings."""
