//! muster-gateway
