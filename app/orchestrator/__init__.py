"""The scheduler of one node: claims jobs, runs each in a process of its own, ends them."""
