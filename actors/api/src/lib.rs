//! muster-api
