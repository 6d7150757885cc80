"""A lease of Muster: one process at a time holds it, and each next holder has a larger fencing token.

    with Lease(cluster, "job", "host-1") as lease:  # waits for it; a thread renews it until the end of the block
        for task in tasks:
            lease.check()  # raises LeaseLost before another process can hold it
            store.write(task, lease.token)  # refuses a smaller token than it has seen

The holder counts from before it asked, by its own clock, and acts in the first two thirds of the duration: the last
third is for an act that has begun. A process that is frozen between `check` and its act is late all the same, and
only `store` can refuse what it writes then.
"""

import contextlib
import datetime
import secrets
import threading
import time
from urllib.parse import quote

from muster import MusterError, now

# Codes of Kubernetes: the lease is no longer what the write was made for.
CHANGED = ("Conflict", "AlreadyExists", "NotFound")


class LeaseLost(MusterError):
    """The lease is over, or could be before an act that begins now has ended."""


class Lease:
    def __init__(self, cluster, name, candidate, namespace="default", seconds=15):
        """`seconds`: how long others wait for a holder that has died; a whole number, 4 or more."""
        self.cluster, self.name, self.candidate, self.seconds = cluster, name, candidate, seconds
        self.native = f"/v1/leases/{quote(namespace, safe='')}/{quote(name, safe='')}"
        self.objects = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
        self.holder, self.token, self.revision, self.until = None, None, None, 0
        self._released, self._writing = threading.Event(), threading.Lock()

    def check(self):
        """To be called before each act. A lease that has lapsed once stays lost: acquire it again."""
        if now() >= self.until:
            raise LeaseLost("lease_lost", f"the lease {self.name} is over, or may be soon")

    def acquire(self, timeout=None):
        """Waits until the lease is free, takes it, and returns the token. With `timeout=0` it tries once."""
        # A name of its own for each time: two holders with one name would have one token.
        self.holder, began = f"{self.candidate}.{secrets.token_hex(4)}", now()
        while True:
            sent, seen = now(), self._read()
            # Its own name is there already if the answer to its write was lost.
            if not seen or seen["expired"] or seen["holder"] in (None, "", self.holder):
                try:
                    self._write(self.holder, seen and seen["revision"], self.seconds)
                    self.until = sent + self.seconds * 2 / 3
                except MusterError as error:
                    if error.code not in CHANGED:
                        raise
                if now() < self.until:
                    self._released = threading.Event()
                    threading.Thread(target=self._keep, args=[self._released], daemon=True).start()
                    return self.token
            if timeout is not None and now() - began >= timeout:
                holder = seen and seen["holder"]
                raise MusterError("timed_out", f"the lease {self.name} is held by {holder}", retry=True)
            time.sleep(min(seen and seen["expires_in_ms"] or 200, 1000) / 1000)

    def renew(self):
        """Gains time, and raises LeaseLost if there is none to gain. A thread calls it."""
        with self._writing:
            self.check()
            sent = now()
            self._update(self.holder)
            self.check()  # the answer may have come too late
            self.until = sent + self.seconds * 2 / 3

    def release(self):
        """Lets the next one take the lease at once. If that fails it expires by itself."""
        held, self.until = now() < self.until, 0
        self._released.set()
        with self._writing, contextlib.suppress(MusterError):
            if held:
                self._update("")

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *_):
        self.release()

    def _keep(self, released):
        wait = self.seconds / 6
        while not released.wait(wait):
            try:
                self.renew()
                wait = self.seconds / 6
            except LeaseLost:
                return
            except MusterError:
                wait = 0.1

    def _read(self):
        try:
            return self.cluster.request("GET", self.native)
        except MusterError as error:
            if error.code == "not_found":
                return None
            raise

    def _update(self, holder):
        """Writes what this holder has. The revision can be another one: after a write whose answer was lost."""
        while True:
            try:
                return self._write(holder, self.revision, self.seconds / 6)
            except MusterError as error:
                if error.code not in CHANGED:
                    raise
            seen = self._read()
            if not seen or seen["expired"] or (seen["holder"], seen["fencing_token"]) != (self.holder, self.token):
                self.until = 0
                raise LeaseLost("lease_lost", f"the lease {self.name} is held by {seen and seen['holder']}")
            self.revision = seen["revision"]

    def _write(self, holder, revision, timeout):
        """Only onto the revision that was read: a write in between is a conflict, and no holder is overlooked."""
        # Only whether this time differs from the one before counts, not what it is.
        renewed = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {"spec": {"holderIdentity": holder, "leaseDurationSeconds": self.seconds, "renewTime": renewed}}
        if revision is None:
            body["metadata"] = {"name": self.name}
            lease = self.cluster.request("POST", self.objects, body, timeout=timeout)
        else:
            body["metadata"] = {"resourceVersion": str(revision)}
            path, content = f"{self.objects}/{quote(self.name, safe='')}", "application/merge-patch+json"
            lease = self.cluster.request("PATCH", path, body, timeout=timeout, content=content)
        self.revision = int(lease["metadata"]["resourceVersion"])
        self.token = int(lease["metadata"]["annotations"]["muster.dev/fencing-token"])
