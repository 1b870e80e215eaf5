"""Each device alone: right to the last element, as fast as its peers, and as fast at the end as at the beginning."""
