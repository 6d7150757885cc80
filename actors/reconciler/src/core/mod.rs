//! What a node decides about reconcilers: whether it stands for running one, what it does while it runs one, and how far a
//! participant is. None of it is safe by itself, and none of it has to be: the cluster judges every step when it is applied.

pub mod admission;
pub mod eligibility;
pub mod retry;
pub mod run;
