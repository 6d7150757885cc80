"""Muster from Python, with the standard library alone: status, role changes, events. `muster_lease.py` has leases.

    cluster = Cluster("/run/muster/muster.sock")             # the daemon of this machine; a manager's has all rights
    cluster = Cluster.with_identity("ann.identity.json")     # all managers, over mTLS: `muster user create ann`

A request that a manager does not answer goes to the next one under the same id, so that a change is made once.
"""

import contextlib
import http.client
import json
import secrets
import socket
import ssl
import tempfile
import time
from urllib.parse import quote

ANSWER_TIMEOUT = 5  # seconds, then the next manager is asked
SILENCE_TIMEOUT = 15  # a stream has a comment every 5 s: its connection is lost


def now():
    """Seconds of a clock that is never set, and that counts while the machine sleeps: leases run out meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def new_request_id():
    """The time comes first: by it the cluster decides how long it remembers the outcome."""
    return f"{int(time.time() * 1000):012x}{secrets.token_hex(10)}"


class MusterError(Exception):
    """A refusal or a failure. `code` is for programs; `retry`: the same request may succeed later."""

    def __init__(self, code, message, retry=False, after=0):
        super().__init__(f"{message} ({code})")
        self.code, self.retry, self.after, self.request_id = code, retry, after, None

    @classmethod
    def of(cls, response):
        """From `{"error": …}` of /v1, or from a Status of Kubernetes under /apis."""
        text, retry = response.read().decode(errors="replace"), response.status in (429, 500, 503, 504)
        with contextlib.suppress(ValueError, LookupError, AttributeError):
            body = json.loads(text)
            error = body.get("error") or {"code": body["reason"], "message": body["message"]}
            return cls(error["code"], error["message"], retry, int(response.getheader("Retry-After", 0)))
        return cls("internal", f"HTTP status {response.status}: {text[:200]}", retry)


class _Connection(http.client.HTTPConnection):
    def __init__(self, address, tls, timeout):
        super().__init__("muster", timeout=timeout)
        self.address, self.tls = address, tls

    def connect(self):
        if self.tls:
            host, _, port = self.address.rpartition(":")
            plain = socket.create_connection((host.strip("[]"), int(port)), self.timeout)
            # Only managers' certificates carry this name.
            self.sock = self.tls.wrap_socket(plain, server_hostname="muster-manager")
        else:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(self.address)


class Cluster:
    def __init__(self, *addresses, tls=None, timeout=30):
        """`addresses`: sockets, or with `tls` HOST:PORT of managers. `timeout`: how long a request is repeated."""
        self.addresses, self.tls, self.timeout = list(addresses), tls, timeout

    @classmethod
    def with_identity(cls, path, timeout=30):
        with open(path) as file:
            identity = json.load(file)
        tls = ssl.create_default_context(cadata=identity["root_pem"])  # no other root counts
        with tempfile.NamedTemporaryFile("w") as pem:  # `ssl` reads keys only from files; this one is private
            pem.write(identity["cert_pem"] + identity["key_pem"])
            pem.flush()
            tls.load_cert_chain(pem.name)
        return cls(*identity["managers"], tls=tls, timeout=timeout)

    @contextlib.contextmanager
    def _answer(self, address, timeout, *request):
        """One attempt at one manager. What fails while the answer is read counts, too."""
        try:
            with contextlib.closing(_Connection(address, self.tls, timeout)) as connection:
                connection.request(*request)
                with connection.getresponse() as response:
                    if response.status >= 300:
                        raise MusterError.of(response)
                    yield response
        except (OSError, http.client.HTTPException) as failure:
            raise MusterError("unreachable", f"{address}: {failure!r}", retry=True) from failure

    def _ask_next_after(self, address):
        if self.addresses[0] == address:  # otherwise another thread has moved on
            self.addresses = self.addresses[1:] + [address]

    def request(self, method, path, body=None, request_id=None, timeout=None, content="application/json"):
        """The answer. To repeat a change whose outcome an error leaves open, give the error's `request_id`."""
        headers = {"Muster-Request-Id": request_id or new_request_id(), "Content-Type": content}
        data, end, pause, attempts = body and json.dumps(body), now() + (timeout or self.timeout), 0.1, 0
        while True:
            address, left = self.addresses[0], max(end - now(), 0.1)
            try:
                with self._answer(address, min(left, ANSWER_TIMEOUT), method, path, data, headers) as response:
                    return json.load(response)
            except MusterError as error:
                self._ask_next_after(address)
                attempts += 1  # each manager is asked before a pause
                wait = 0 if attempts % len(self.addresses) else max(error.after, pause)
                if not error.retry or now() + wait >= end:
                    error.request_id = headers["Muster-Request-Id"]
                    raise
            if wait:
                time.sleep(wait)
                pause = min(2 * pause, 2)

    def status(self):
        return self.request("GET", "/v1/status")

    def nodes(self):
        """All nodes as `items`, and the `revision` after which `watch` continues."""
        return self.request("GET", "/v1/nodes?fresh=true")

    def promote(self, node, timeout=60):
        """Makes a worker a manager, and returns it once it votes."""
        asked, end = self.request("POST", f"/v1/nodes/{quote(node, safe='')}/promote"), now() + timeout
        while True:  # by id: a name can pass to another node
            seen = self.request("GET", f"/v1/nodes/{asked['node']}?fresh=true")
            if seen["desired_role"] != "manager":
                raise MusterError("conflict", f"another request made worker the desired role of {node}")
            if seen["role"] == seen["certificate"]["role"] == "manager" and seen["membership"] == "voter":
                return seen
            if now() > end:
                why = "; ".join(condition["message"] for condition in seen["conditions"])
                raise MusterError("timed_out", f"{node} is not a manager yet: {why}", retry=True)
            time.sleep(0.2)

    def watch(self, place):
        """Yields `(place, events)` of each revision after `place`, without end. Store it with what you have done.

        Code `expired`: events after the place are no longer kept. Read what you need again, and watch after that.
        """
        while True:
            address, headers = self.addresses[0], {"Accept": "text/event-stream", "Last-Event-ID": str(place)}
            events, fields = [], {}
            try:
                with self._answer(address, SILENCE_TIMEOUT, "GET", "/v1/events", None, headers) as response:
                    for line in response:
                        name, _, value = line.decode().rstrip("\n").partition(":")
                        fields[name] = value.strip()
                        if line != b"\n":
                            continue
                        if fields.get("event") == "expired":
                            raise MusterError("expired", f"events after {place} are no longer kept")
                        if "data" in fields:
                            events.append(json.loads(fields["data"]))
                        if "id" in fields:  # of the last event of a revision. A lost connection drops a part of one
                            place = int(fields["id"])
                            yield place, events
                            events = []
                        fields = {}
            except MusterError as error:
                if not error.retry:
                    raise
                time.sleep(max(error.after, 0.1))
            self._ask_next_after(address)
            members = self.request("GET", "/v1/raft")["members"]  # managers change. Fails if none answers
            if self.tls:
                self.addresses = sorted((m["addr"] for m in members), key=lambda addr: addr == address)
