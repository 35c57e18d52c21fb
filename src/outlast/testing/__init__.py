"""A mock Kafka cluster, faults on demand and a simulator, for our tests and for yours."""
