//! muster-agent
