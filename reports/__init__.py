"""Reports: drawn from the record alone, at any time, without the cluster."""
