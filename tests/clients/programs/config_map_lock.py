"""The lock of releases before 37: a ConfigMap, whose annotation names the leader."""

import logging
import sys

from kubernetes import config
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock

name, identity = sys.argv[1:]
logging.basicConfig(level=logging.INFO)
config.load_kube_config()  # the file that KUBECONFIG names

leaderelection.LeaderElection(
    electionconfig.Config(
        ConfigMapLock(name, "default", identity),
        lease_duration=4,
        renew_deadline=3,
        retry_period=1,
        onstarted_leading=lambda: print(f"{identity} leads", flush=True),
        onstopped_leading=lambda: print(f"{identity} stopped leading", flush=True),
    )
).run()
