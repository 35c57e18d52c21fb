"""A pytest plugin for kafka-python's tests: their `KafkaProducer` is outlast's."""

from __future__ import annotations

import kafka
import kafka.producer.kafka

import outlast

for module in (kafka, kafka.producer, kafka.producer.kafka):
    module.KafkaProducer = outlast.KafkaProducer
