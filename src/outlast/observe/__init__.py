"""Facts made visible: Prometheus metrics, OpenTelemetry spans, log lines, reports."""
