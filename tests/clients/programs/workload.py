"""Prints the identity that its node gives it, and what becomes of it: no secret is configured, only the socket."""

import sys
import threading

from spiffe import JwtSvid, WorkloadApiClient

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
elif sys.argv[1:2] == ["jwt"]:
    # jwt AUDIENCE: a token for this audience, judged by the node and by this library; its text last.
    audience = sys.argv[2]
    svid = client.fetch_jwt_svid(audience={audience})
    print(f"token of {svid.spiffe_id} for {sorted(svid.audience)}")
    print(f"validated {client.validate_jwt_svid(svid.token, audience).spiffe_id}")
    bundle = client.fetch_jwt_bundles().get_bundle_for_trust_domain(svid.spiffe_id.trust_domain)
    print(f"parsed {JwtSvid.parse_and_validate(svid.token, bundle, {audience}).spiffe_id} keys {len(bundle.jwt_authorities)}")
    print(svid.token)
elif sys.argv[1:2] == ["judge"]:
    # judge AUDIENCE TOKEN
    print(f"good {client.validate_jwt_svid(sys.argv[3], sys.argv[2]).spiffe_id}")
else:
    client.stream_x509_contexts(holds, fails)
    ended.wait()
