"""A pytest plugin for kafka-python's tests: their `KafkaProducer` is outlast's."""

from __future__ import annotations

import outlast

outlast.install()
