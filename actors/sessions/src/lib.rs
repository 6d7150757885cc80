//! muster-sessions
