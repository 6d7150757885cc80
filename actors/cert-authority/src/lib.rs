//! muster-cert-authority
