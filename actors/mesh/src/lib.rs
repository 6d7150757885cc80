//! muster-mesh
