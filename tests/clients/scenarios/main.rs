//! Scenarios of unmodified clients of Kubernetes, of libraries for SPIFFE, and of Prometheus: a user's actions with each one on a real cluster, over TLS, with the
//! file that `muster kubeconfig` prints, and what must hold afterwards.

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
mod prometheus;
mod protobuf;
mod python;
mod rotation;
mod workloads;
