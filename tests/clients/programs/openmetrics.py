"""Reads OpenMetrics from stdin with the strict parser of Prometheus' Python client; prints the number of families."""

import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

families = list(text_string_to_metric_families(sys.stdin.read()))
assert any(family.samples for family in families), "no sample"
print(len(families), "families")
