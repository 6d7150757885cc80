// Tells who holds which lease, as it changes.
import { CoordinationV1Api, KubeConfig, makeInformer } from "@kubernetes/client-node";

const config = new KubeConfig();
config.loadFromDefault(); // the file that KUBECONFIG names
const namespace = "default";
const path = `/apis/coordination.k8s.io/v1/namespaces/${namespace}/leases`;
const list = () => config.makeApiClient(CoordinationV1Api).listNamespacedLease({ namespace });
const informer = makeInformer(config, path, list);

const tell = (what) => (lease) =>
  console.log(what, lease.metadata.name, lease.spec.holderIdentity, lease.metadata.annotations?.["muster.dev/fencing-token"]);
for (const what of ["add", "update", "delete"]) {
  informer.on(what, tell(what));
}
informer.on("error", (error) => {
  console.log("error", error.message);
  setTimeout(() => informer.start(), 1000);
});
await informer.start();
console.log("watching");
