"""The programs that run on the cluster: one zip application, Python 3.8+, nothing imported but torch."""
