"""A Kafka producer whose sends outlast a failover, and which tells you what the failover did."""
