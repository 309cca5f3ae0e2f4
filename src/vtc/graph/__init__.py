"""The captured graph: movement-preserving ATen, the movement table, grouping into regions."""
