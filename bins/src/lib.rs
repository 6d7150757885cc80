//! muster
