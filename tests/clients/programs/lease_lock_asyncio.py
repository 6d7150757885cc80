"""The lease lock of the asynchronous client, and a watch of the lease: works only while it holds it."""

import asyncio
import logging
import sys

from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.leaderelection import electionconfig, leaderelection
from kubernetes_asyncio.leaderelection.resourcelock.leaselock import LeaseLock

lease, identity = sys.argv[1:]
logging.basicConfig(level=logging.INFO)
logging.getLogger("kubernetes_asyncio.leaderelection").setLevel(logging.DEBUG)


async def main():
    await config.load_kube_config()
    async with client.ApiClient() as api:
        leases = client.CoordinationV1Api(api)

        async def work():
            async with watch.Watch() as changes:
                async for event in changes.stream(
                    leases.list_namespaced_lease, "default", field_selector=f"metadata.name={lease}"
                ):
                    held = event["object"]
                    if held.spec.holder_identity == identity:
                        token = held.metadata.annotations["muster.dev/fencing-token"]
                        print(f"{identity} leads with fencing token {token}", flush=True)
                        break
            await asyncio.Event().wait()  # until it is cancelled

        async def stop():
            print(f"{identity} stopped leading", flush=True)

        await leaderelection.LeaderElection(
            electionconfig.Config(
                LeaseLock(lease, "default", identity, api),
                lease_duration=4,
                renew_deadline=3,
                retry_period=1,
                onstarted_leading=work,
                onstopped_leading=stop,
            )
        ).run()


asyncio.run(main())
