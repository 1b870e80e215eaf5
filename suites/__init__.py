"""What a cluster must do, one folder a concern; the tests read as prose: launch, measure, check."""
