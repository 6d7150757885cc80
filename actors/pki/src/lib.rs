//! muster-pki
