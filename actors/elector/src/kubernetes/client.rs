//! The client of the `kube` crate as a [`KubeApi`].
