//! Stories of unmodified Kubernetes clients: what a user of each one does against a real cluster, over TLS, with the
//! file that `muster kubeconfig` prints, and what must be true afterwards.

mod access;
mod elector;
mod handler;
mod harness;
mod javascript;
mod kube_leader_election;
mod kube_rs;
mod kubectl;
mod losses;
mod manual;
mod protobuf;
mod python;
