"""What the sampler on each node measured beside the work: series for the report, windows for the verdicts."""
