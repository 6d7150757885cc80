"""Prints the queries of a board of Grafana as rules of Prometheus, whose tool checks their syntax. JSON is YAML."""

import json
import sys

board = json.load(open(sys.argv[1]))
queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
concrete = [query.replace("$__rate_interval", "5m").replace("$job", "muster") for query in queries]
rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(concrete)]
print(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
