//! muster-kernel
