//! muster-tests
