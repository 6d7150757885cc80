"""Prints the identity that its node gives it, and what becomes of it: no secret is configured, only the socket."""

import sys
import threading

from spiffe import WorkloadApiClient

client = WorkloadApiClient()  # the socket that SPIFFE_ENDPOINT_SOCKET names
ended = threading.Event()


def holds(context):
    svid = context.default_svid
    bundle = context.x509_bundle_set.get_bundle_for_trust_domain(svid.spiffe_id.trust_domain)
    print(f"holds {svid.spiffe_id} roots {len(bundle.x509_authorities)}", flush=True)


def fails(error):
    print(f"holds nothing: {error}", flush=True)
    ended.set()


if sys.argv[1:] == ["fetch"]:
    for svid in client.fetch_x509_svids():
        print(f"fetched {svid.spiffe_id}")
    for bundle in client.fetch_x509_bundles().bundles:
        print(f"trusts {bundle.trust_domain} roots {len(bundle.x509_authorities)}")
else:
    client.stream_x509_contexts(holds, fails)
    ended.wait()
