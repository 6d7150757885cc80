// Creates, replaces, patches and deletes a lease.
import {
  CoordinationV1Api,
  KubeConfig,
  PatchStrategy,
  V1MicroTime,
  setHeaderOptions,
} from "@kubernetes/client-node";

const config = new KubeConfig();
config.loadFromDefault(); // the file that KUBECONFIG names
const leases = config.makeApiClient(CoordinationV1Api);
const [name, namespace] = [process.argv[2], "default"];

const body = {
  metadata: { name },
  spec: { holderIdentity: "ann", leaseDurationSeconds: 15, renewTime: new V1MicroTime() },
};
const created = await leases.createNamespacedLease({ namespace, body });
console.log("created", created.spec.holderIdentity, created.metadata.annotations["muster.dev/fencing-token"]);

created.spec.renewTime = new V1MicroTime();
const replaced = await leases.replaceNamespacedLease({ name, namespace, body: created });
console.log("replaced", Number(replaced.metadata.resourceVersion) > Number(created.metadata.resourceVersion));

// What was read before the last write is refused: another writer may have been there in between.
await leases.replaceNamespacedLease({ name, namespace, body: created }).catch((refusal) => {
  console.log("stale write refused", refusal.code, JSON.parse(refusal.body).reason);
});

const patch = [{ op: "replace", path: "/spec/leaseDurationSeconds", value: 30 }];
const patched = await leases.patchNamespacedLease({ name, namespace, body: patch });
console.log("patched by operations", patched.spec.leaseDurationSeconds);

const merged = await leases.patchNamespacedLease(
  { name, namespace, body: { metadata: { labels: { room: "7" } } } },
  setHeaderOptions("Content-Type", PatchStrategy.MergePatch),
);
console.log("patched by merging", merged.metadata.labels.room);

const deleted = await leases.deleteNamespacedLease({ name, namespace });
console.log("deleted", deleted.status);
