//! muster-blocklist
