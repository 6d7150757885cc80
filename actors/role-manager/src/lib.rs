//! muster-role-manager
