"""Works only while it holds a lease: start it on several machines, and one of them works at a time."""

import logging
import sys

from kubernetes import client, config
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

lease, identity = sys.argv[1:]
logging.basicConfig(level=logging.INFO)
config.load_kube_config()  # the file that KUBECONFIG names


def work():
    held = client.CoordinationV1Api().read_namespaced_lease(lease, "default")
    if held.spec.holder_identity != identity:
        return  # overtaken before the work began
    token = held.metadata.annotations["muster.dev/fencing-token"]
    print(f"{identity} leads with fencing token {token}", flush=True)  # send the token along with every write


def stop():
    print(f"{identity} stopped leading", flush=True)


leaderelection.LeaderElection(
    electionconfig.Config(
        LeaseLock(lease, "default", identity),
        lease_duration=4,
        renew_deadline=3,
        retry_period=1,
        onstarted_leading=work,
        onstopped_leading=stop,
    )
).run()
