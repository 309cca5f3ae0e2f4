"""Built-in models, the systems they are compared with, timing, accuracy, and result files.

Nothing here is imported by the compiler. What needs a package of the extra `vtc[bench]` imports it
when it is used, so that the command line starts quickly and says which package is missing.
"""
