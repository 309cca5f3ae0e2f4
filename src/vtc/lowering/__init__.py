"""Points-to graph -> schedule of regions; region -> implementation; what each one costs."""
