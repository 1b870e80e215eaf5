"""Data arrives: a data set is copied to every node's own storage, whole, fast enough, and survives being killed."""
